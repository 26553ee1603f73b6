package services

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// jars returns the folder with a service's jars; jar is one of them.
func jars(name, jar, env string) (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", fmt.Errorf("no java: run `make services`, or set %s", env)
	}
	return cached(name, jar, env)
}

// cached returns the name of what `make services` has put in .cache beside the go.mod; it must hold
// file. Its error names env, the variable for a service that runs elsewhere.
func cached(name, file, env string) (string, error) {
	dir, err := os.Getwd() // of a test: its package
	if err != nil {
		return "", err
	}
	for {
		found := filepath.Join(dir, ".cache", name)
		if _, err := os.Stat(filepath.Join(found, file)); err == nil {
			return found, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no .cache/%s: run `make services`, or set %s", filepath.Join(name, file), env)
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
