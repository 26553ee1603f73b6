package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/etcd"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// A command is one of the scripts' own commands.
type command = func(ts *testscript.TestScript, neg bool, args []string)

func TestMain(m *testing.M) {
	testscript.Main(built{m}, map[string]func(){"throttle-admin": main})
}

// built has scripts run throttle-admin without the race detector, which makes each of 500 commands
// take several times as long to start.
type built struct{ *testing.M }

func (b built) Run() int {
	name, err := exec.LookPath("throttle-admin") // the test binary under another name
	if err == nil {
		var out []byte
		if out, err = exec.Command("go", "build", "-o", name, ".").CombinedOutput(); err != nil {
			err = fmt.Errorf("go build: %w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return b.M.Run()
}

// TestScripts runs scripts with a policy file.
func TestScripts(t *testing.T) {
	testscript.Run(t, scripts("testdata/script", "file:policies.yaml", nil))
}

// TestEtcdScripts runs scripts with an etcd; each script has its own prefix.
func TestEtcdScripts(t *testing.T) {
	etcd := services.Etcd(t)
	client := etcd.Client()
	p := scripts("testdata/etcd", "", map[string]command{
		// put KEY VALUE stores any value, also an invalid one; the key is relative to PREFIX/config/.
		"put": func(ts *testscript.TestScript, _ bool, args []string) {
			address := strings.TrimPrefix(ts.Getenv("THROTTLE_POLICIES"), "etcd://")
			_, prefix, _ := strings.Cut(address, "/")
			_, err := client.Put(t.Context(), "/"+prefix+"/config/"+args[0], args[1])
			ts.Check(err)
		},
	})
	p.Setup = func(env *testscript.Env) error {
		env.Setenv("THROTTLE_POLICIES", "etcd://"+etcd.Endpoint+"/"+services.Name(t))
		return nil
	}
	testscript.Run(t, p)
}

func scripts(dir, store string, more map[string]command) testscript.Params {
	cmds := map[string]command{
		"status": status, "masked": masked, "rubbish": rubbish, "until": until, "seen": seen,
	}
	maps.Copy(cmds, more)
	return testscript.Params{
		Dir: dir, UpdateScripts: *update, Cmds: cmds, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("THROTTLE_POLICIES", store)
			return nil
		},
	}
}

// status N COMMAND... runs a command that must exit with status N.
func status(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// masked FILE writes the last command's output to FILE, with masks for what differs in each run.
func masked(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile("stdout")
	for _, m := range masks {
		text = m.find.ReplaceAllString(text, m.by)
	}
	ts.Check(writeFile(ts.MkAbs(args[0]), text))
}

var masks = []struct {
	find *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`((?:revision|replaces|--before)"?:? )\d+`), "${1}N"},
	{regexp.MustCompile(`(?m)^(\d{6,}  )`), "REVISION  "}, // of a table
	{regexp.MustCompile(`(?m)^(revision {2,})\d+`), "${1}N"},
	// A text of the same length, so that the tables stay the same:
	{regexp.MustCompile(`TestEtcdScripts-[0-9a-f]{8}`), "prefix-of-the-script-123"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z`), "TIME"},
	{regexp.MustCompile(`(identity"?: "?)\w+`), "${1}ID"},
	{regexp.MustCompile(`(secondsLeft"?: )[\d.]+`), "${1}N"},
}

// seen sets $SEEN to the revision in the last command's output.
func seen(ts *testscript.TestScript, _ bool, _ []string) {
	match := regexp.MustCompile(`"revision": (\d+)`).FindStringSubmatch(ts.ReadFile("stdout"))
	if match == nil {
		ts.Fatalf("no revision")
	}
	ts.Setenv("SEEN", match[1])
}

// rubbish FILE writes 64 KiB that are not a policy file.
func rubbish(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(writeFile(ts.MkAbs(args[0]), strings.Repeat("\x00{[rubbish: &*!\n", 1<<12)))
}

// until REGEXP COMMAND... runs a command again and again until its output matches.
func until(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile("(?m)" + args[0])
	for end := time.Now().Add(throttletest.Patience); ; time.Sleep(100 * time.Millisecond) {
		ts.Check(ts.Exec(args[1], args[2:]...))
		if want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("no output that matches %q", args[0])
		}
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if parent := cmd.Parent(); parent != nil && parent.Name() == "completion" {
			return // cobra's commands have examples in their long texts
		}
		assert.NotEmpty(t, cmd.Example, cmd.CommandPath())
		assert.NotEmpty(t, cmd.Short, cmd.CommandPath())
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(cli.NewRoot(&cli.App{}, families...))
}

func writeFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o600) }

// TestDevEndsWhileItWaits: another etcd, which ignores dev's lock, uses the data, and etcd waits
// for it forever.
func TestDevEndsWhileItWaits(t *testing.T) {
	dir := t.TempDir()
	server, err := etcd.Start(t.Context(), dir, "127.0.0.1:0", false)
	require.NoError(t, err)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	dev := exec.CommandContext(ctx, "throttle-admin", "dev", "--data", dir)
	var errs bytes.Buffer
	dev.Stderr = &errs
	require.NoError(t, dev.Start())
	throttletest.Until(t, "dev waits for the folder of the other etcd", func() bool {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", dev.Process.Pid)) // a valid pattern
		return slices.ContainsFunc(files, func(name string) bool {
			target, _ := os.Readlink(name)
			return strings.HasPrefix(target, dir)
		})
	})
	require.NoError(t, dev.Process.Signal(os.Interrupt))
	require.Error(t, dev.Wait())
	assert.Equal(t, cli.ExitFailed, dev.ProcessState.ExitCode(), "dev had to be killed")
	assert.Contains(t, errs.String(), "start etcd in "+dir+": ")
}
