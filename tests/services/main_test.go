package services_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestMain runs the tests in a process of their own, with a temporary folder of their own, which
// must be empty when the services have ended with that process.
func TestMain(m *testing.M) {
	const marker = "SERVICES_IN_OWN_FOLDER"
	if os.Getenv(marker) != "" {
		code := m.Run()
		for _, name := range strays() {
			fmt.Println("a service uses a file outside its folder:", name)
			code = 1
		}
		os.Exit(code)
	}
	code, err := alone(marker)
	if err != nil {
		fmt.Println(err)
	}
	os.Exit(code)
}

func alone(marker string) (code int, err error) {
	dir, err := os.MkdirTemp("", "services-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // of what is reported below
	tests := exec.Command(os.Args[0], os.Args[1:]...)
	tests.Env = append(os.Environ(), "TMPDIR="+dir, marker+"=1",
		"THROTTLE_TEST_KAFKA=", "THROTTLE_TEST_PULSAR=") // they start their own
	tests.Stdout, tests.Stderr = os.Stdout, os.Stderr
	if err := tests.Run(); err != nil {
		return 1, err
	}
	var left []string
	for end := time.Now().Add(throttletest.Patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left, err = filepath.Glob(filepath.Join(dir, "*"))
		left = slices.DeleteFunc(left, func(name string) bool { // of the process that TestOrphan kills
			return strings.HasPrefix(filepath.Base(name), "throttle-test-port-")
		})
		if len(left) == 0 || err != nil {
			return 0, err
		}
	}
	return 1, fmt.Errorf("the services have left %v", left)
}

// strays returns the files of the system's temporary folder that services have mapped, such as
// native libraries, which they unpack. It is empty where there is no /proc.
func strays() (names []string) {
	for _, pid := range services.PIDs() {
		maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		for line := range strings.Lines(string(maps)) {
			name := line[strings.Index(line, "/")+1:]
			if strings.HasPrefix(name, "tmp/") && !strings.HasPrefix("/"+name, os.TempDir()) {
				names = append(names, strings.TrimSpace("/"+name))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
