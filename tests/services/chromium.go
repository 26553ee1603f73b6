package services

import (
	"os/exec"
	"testing"
)

// Chromium returns the path of a Chromium, of the system.
func Chromium(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("services: no chromium: run `make services`")
	}
	return path
}
