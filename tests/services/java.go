package services

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// jars returns the folder with a service's jars, .cache/name beside the go.mod; jar is one of them.
// Its error names env, the variable for a service that runs elsewhere.
func jars(name, jar, env string) (string, error) {
	get := "run `make services`, or set " + env
	if _, err := exec.LookPath("java"); err != nil {
		return "", fmt.Errorf("no java: %s", get)
	}
	dir, err := os.Getwd() // of a test: its package
	if err != nil {
		return "", err
	}
	for {
		libs := filepath.Join(dir, ".cache", name)
		if _, err := os.Stat(filepath.Join(libs, jar)); err == nil {
			return libs, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no .cache/%s with its jars: %s", name, get)
		}
		dir = parent
	}
}

// javaOptions returns the options that each Java service is started with. Its temporary files are
// in dir: RocksDB, Netty and others unpack native libraries, 18 MB in all, and do not remove them.
func javaOptions(dir string) []string {
	return []string{
		"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", // for a quick start
		"-Djava.io.tmpdir=" + dir,
		"-XX:-UsePerfData", // which ignores java.io.tmpdir
	}
}
