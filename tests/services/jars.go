package services

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// jars returns the directory with a service's jars, .cache/name beside the go.mod: one of them proves that they are there.
// Whoever has the service elsewhere sets the environment variable.
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
