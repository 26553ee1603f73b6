// Package fleet runs consumers of a broker as processes and counts their messages. A consumer is
// the test binary itself, with a variable in its environment. It reports events with [Print] until
// its standard input ends.
package fleet

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
)

// The events that a consumer reports.
const (
	Read      = "read"      // it received a message
	Committed = "committed" // all earlier messages are committed, or acknowledged
	Unsettled = "unsettled" // all earlier messages may be committed, or not
	Assigned  = "assigned"  // a partition was assigned to it
)

// Print reports an event to the test. The id has no blanks. It identifies a message, and begins
// with its partition and a slash if the consumer reports what is assigned to it, or a partition.
func Print(event, id string) { fmt.Println(event, time.Now().UnixNano(), id) }

// UntilInputEnds calls end when standard input ends.
func UntilInputEnds(end func()) {
	_, _ = io.Copy(io.Discard, os.Stdin) // an error ends the input, too
	end()
}

// A Message was received by a consumer.
type Message struct {
	ID        string
	Read      time.Time
	Committed bool
	Consumer  int // its Process.ID
	Ownership int // how often its partition had been assigned to the consumer
}

// Partition returns what its id begins with.
func (m Message) Partition() string {
	partition, _, _ := strings.Cut(m.ID, "/")
	return partition
}

// A Process is a consumer of a subscription or a Kafka consumer group.
type Process struct {
	ID           int
	Subscription string

	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	mu       sync.Mutex
	messages []Message
	settled  int            // messages before this index will not change
	assigned map[string]int // how often, by partition
}

// Start runs a consumer. At the end of the test it is killed if it still runs.
func Start(t testing.TB, id int, subscription string, env []string) *Process {
	t.Helper()
	p := &Process{
		ID: id, Subscription: subscription, cmd: exec.Command(os.Args[0]),
		ended: make(chan struct{}), assigned: map[string]int{},
	}
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
		_ = p.cmd.Process.Kill() // fails if the process has ended
		<-p.ended
		_ = p.cmd.Wait()
	})
	return p
}

func (p *Process) line(text string) {
	var what, id string
	var at int64
	if n, _ := fmt.Sscan(text, &what, &at, &id); n != 3 {
		return // Kill cut the line
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch what {
	case Read:
		m := Message{ID: id, Read: time.Unix(0, at), Consumer: p.ID}
		m.Ownership = p.assigned[m.Partition()]
		p.messages = append(p.messages, m)
	case Committed, Unsettled:
		for i := p.settled; i < len(p.messages); i++ {
			p.messages[i].Committed = what == Committed
		}
		p.settled = len(p.messages)
	case Assigned:
		p.assigned[id]++
	}
}

// Messages returns the messages received so far.
func (p *Process) Messages() []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.messages)
}

// Assigned returns how often each partition was assigned to the process so far.
func (p *Process) Assigned() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.assigned)
}

// Pause stops the process with SIGSTOP.
func (p *Process) Pause(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
}

// Resume ends a Pause.
func (p *Process) Resume(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// Kill ends the process with SIGKILL.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	<-p.ended
}

// Stop ends the process by ending its input, and waits for it.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	require.NoError(t, p.stdin.Close())
	<-p.ended
	require.NoError(t, p.cmd.Wait())
}

// A Fleet is the consumers of a test.
type Fleet []*Process

// Messages returns the messages of a subscription, or of all if it is empty, in the order of Read.
func (f Fleet) Messages(subscription string) (all []Message) {
	for _, p := range f {
		if subscription == "" || p.Subscription == subscription {
			all = append(all, p.Messages()...)
		}
	}
	slices.SortFunc(all, func(a, b Message) int { return a.Read.Compare(b.Read) })
	return all
}

// Percent returns what a subscription, or all if it is empty, has read in d since from, in percent
// of what a rate a second gives in it.
func (f Fleet) Percent(subscription string, rate float64, from time.Time, d time.Duration) float64 {
	return 100 * float64(Between(f.Messages(subscription), from, from.Add(d))) / (rate * d.Seconds())
}

// Between counts the messages read in [from, to).
func Between(all []Message, from, to time.Time) (n int) {
	for _, m := range all {
		if !m.Read.Before(from) && m.Read.Before(to) {
			n++
		}
	}
	return n
}

// Window returns the highest number of messages read in any second of [from, to). The messages must
// be in the order of Read.
func Window(all []Message, from, to time.Time) int {
	var at []time.Time
	for _, m := range all {
		if !m.Read.Before(from) && m.Read.Before(to) {
			at = append(at, m.Read)
		}
	}
	return window.Max(time.Second, window.Times(at))
}

// WithinRate returns an error if, at any moment, more messages have been read since a time than a
// rate a second gives since then, and in the slack. The messages must be in the order of Read.
func WithinRate(all []Message, rate float64, since time.Time, slack time.Duration) error {
	var events []window.Event
	for _, m := range all {
		if !m.Read.Before(since) {
			events = append(events, window.Event{At: m.Read.Sub(since), N: 1})
		}
	}
	return window.WithinRate(rate, slack, 0, events)
}

// Distinct counts the different messages.
func Distinct(all []Message) int {
	seen := map[string]bool{}
	for _, m := range all {
		seen[m.ID] = true
	}
	return len(seen)
}
