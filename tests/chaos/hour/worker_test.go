package hour

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A worker is a process that consumes. Each consumer of the plan is two of them, one throttled and
// one with the bare client, which have the same faults.
type worker struct {
	t         *testing.T
	namespace string // empty: that of the test
	program   string
	args      []string
	env       []string
	journal   string

	cmd   *exec.Cmd // nil: does not run
	stdin io.Closer
	left  []int64 // when it was stopped or killed, Unix nanoseconds
}

// start starts the worker. It is killed when the test process ends. If it cannot start, the test
// fails.
func (w *worker) start() {
	line := append([]string{w.program, "-journal", w.journal}, w.args...)
	if w.namespace != "" {
		line = append([]string{"ip", "netns", "exec", w.namespace}, line...)
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "THROTTLE_") })
	cmd.Env = append(append(cmd.Env, w.env...), "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(w.journal+".log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if !assert.NoError(w.t, err) {
		return
	}
	defer log.Close()
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if assert.NoError(w.t, err) && assert.NoError(w.t, cmd.Start()) {
		w.cmd, w.stdin = cmd, stdin
	}
}

// stop ends the worker's input, and waits until it has left its group.
func (w *worker) stop() {
	if w.cmd == nil {
		return
	}
	w.left = append(w.left, time.Now().UnixNano())
	_ = w.stdin.Close()
	assert.NoError(w.t, w.cmd.Wait(), filepath.Base(w.journal))
	w.cmd = nil
}

func (w *worker) kill() {
	if w.cmd == nil {
		return
	}
	w.left = append(w.left, time.Now().UnixNano())
	w.signal(syscall.SIGKILL)
	_ = w.cmd.Wait() // says that it was killed
	w.cmd = nil
}

func (w *worker) signal(s syscall.Signal) {
	if w.cmd == nil { // it could not start
		return
	}
	assert.NoError(w.t, w.cmd.Process.Signal(s), filepath.Base(w.journal))
}
