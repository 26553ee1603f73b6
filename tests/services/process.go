package services

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// guard runs a command in the background, prints its process id, reads a signal, ends the command
// with it, and removes the folder $0. The read also ends when the test process dies.
const guard = `"$@" >&2 & echo $!; read -r sig; kill -"${sig:-KILL}" $!; wait; rm -rf "$0"`

// A process is a service outside the test process. It never outlives the test process.
type process struct {
	pid   int
	dir   string // removed when the process has ended
	guard *exec.Cmd
	sig   io.WriteCloser
}

// startProcess runs a command in dir, with its output in dir/log. The process owns dir.
func startProcess(dir, name string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("sh", append([]string{"-c", guard, dir, name}, args...)...)
	cmd.Dir, cmd.Stderr = dir, log
	// An interrupt ends the tests, which end the service.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	sig, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{dir: dir, guard: cmd, sig: sig}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		p.pid, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: no process id: %w", name, err),
			p.end(syscall.SIGKILL))
	}
	return p, nil
}

// end sends sig, which must end the process, and waits for the end.
func (p *process) end(sig syscall.Signal) error {
	if _, err := fmt.Fprintln(p.sig, int(sig)); err != nil {
		return err
	}
	_ = p.sig.Close() // the guard has read its line
	return p.guard.Wait()
}

// signal sends sig. The guard has not reaped the process, so that the id is still valid.
func (p *process) signal(sig syscall.Signal) error { return syscall.Kill(p.pid, sig) }

// log returns the end of what the process has printed.
func (p *process) log() string {
	text, _ := os.ReadFile(filepath.Join(p.dir, "log")) // an empty log is reported as such
	return string(text[max(0, len(text)-4000):])
}
