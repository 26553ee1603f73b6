package services

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockSource []byte

// A Clock is what a process sees as the time of day. It starts right.
type Clock struct {
	t       testing.TB
	dir     string
	library string
}

// NewClock returns a clock for processes that the test starts. It needs gcc.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	c := &Clock{t: t, dir: t.TempDir()}
	source := filepath.Join(c.dir, "clock.c")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	c.library = filepath.Join(c.dir, "clock.so")
	gcc := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-o", c.library, source)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("services: compile the clock: %v: run `make services`\n%s", err, out)
	}
	c.Set(0)
	return c
}

// Set makes the clock fast by d, in whole seconds.
func (c *Clock) Set(d time.Duration) {
	c.t.Helper()
	f, err := os.OpenFile(c.file(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = binary.Write(f, binary.NativeEndian, int64(d/time.Second))
		_ = f.Close() // all is written
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *Clock) file() string { return filepath.Join(c.dir, "fast") }

// env is the environment of a process that sees the clock.
func (c *Clock) env() []string {
	return []string{"LD_PRELOAD=" + c.library, "CLOCK_FILE=" + c.file()}
}
