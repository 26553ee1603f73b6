// Package fleet runs readers of a broker as processes, and counts the messages that they get. A
// reader is the test binary itself, with a variable in its environment; it prints events with
// [Print], until its input ends.
package fleet

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/window"
)

// What a reader prints.
const (
	Read      = "read"      // it got the message
	Committed = "committed" // all messages before this event are committed, or acknowledged
	Unsettled = "unsettled" // they may be
)

// Print reports an event to the test; id identifies a message, and has no spaces.
func Print(what, id string) { fmt.Println(what, time.Now().UnixNano(), id) }

// UntilInputEnds calls end at the end of the standard input.
func UntilInputEnds(end func()) {
	_, _ = io.Copy(io.Discard, os.Stdin) // an error ends it, too
	end()
}

// A Message is one that a reader got.
type Message struct {
	ID        string
	Read      time.Time
	Committed bool
	Reader    int
}

// A Process is a reader of a consumer group or subscription.
type Process struct {
	ID    int
	Group string

	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	mu       sync.Mutex
	messages []Message
	settled  int // number of messages that are committed, or never will be
}

// Start runs a reader; at the end of the test it is killed if it still runs.
func Start(t testing.TB, id int, group string, env []string) *Process {
	t.Helper()
	p := &Process{ID: id, Group: group, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), env...), "GOMAXPROCS=1")
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.line(lines.Text())
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has usually ended by now
		<-p.ended
		_ = p.cmd.Wait()
	})
	return p
}

func (p *Process) line(text string) {
	var what, id string
	var at int64
	if n, _ := fmt.Sscan(text, &what, &at, &id); n != 3 {
		return // cut off by a kill
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch what {
	case Read:
		p.messages = append(p.messages, Message{ID: id, Read: time.Unix(0, at), Reader: p.ID})
	case Committed, Unsettled:
		for i := p.settled; i < len(p.messages); i++ {
			p.messages[i].Committed = what == Committed
		}
		p.settled = len(p.messages)
	}
}

// Messages returns the messages that the reader has got so far.
func (p *Process) Messages() []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.messages)
}

// Kill ends the process as a power failure would.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	<-p.ended
}

// Stop ends the process as a deployment would, and waits for its end.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	require.NoError(t, p.stdin.Close())
	<-p.ended
	require.NoError(t, p.cmd.Wait())
}

// A Fleet is all readers of a test.
type Fleet []*Process

// Messages returns those of all readers, or of one consumer group, in the order in which they were
// read.
func (f Fleet) Messages(group string) (all []Message) {
	for _, p := range f {
		if group == "" || p.Group == group {
			all = append(all, p.Messages()...)
		}
	}
	slices.SortFunc(all, func(a, b Message) int { return a.Read.Compare(b.Read) })
	return all
}

// Between returns the number of messages read in [from, to).
func Between(all []Message, from, to time.Time) (n int) {
	for _, m := range all {
		if !m.Read.Before(from) && m.Read.Before(to) {
			n++
		}
	}
	return n
}

// Window returns the most messages read in any second within [from, to); all are in the order in
// which they were read.
func Window(all []Message, from, to time.Time) int {
	var at []time.Time
	for _, m := range all {
		if !m.Read.Before(from) && m.Read.Before(to) {
			at = append(at, m.Read)
		}
	}
	return window.Max(time.Second, window.Times(at))
}

// Distinct returns the number of different messages.
func Distinct(all []Message) int {
	seen := map[string]bool{}
	for _, m := range all {
		seen[m.ID] = true
	}
	return len(seen)
}
