package pulsarthrottle

import (
	"context"
	"slices"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"

	"github.com/dispatchthrottle/throttle/adapters/internal/backlog"
)

// A polled consumer or reader has its backlog asked for once a second, while a topic of it has a
// limit: of the admin API if there is one, and otherwise, or if that fails, by the ends of its
// partitions. While the broker cannot be reached the backlog is unknown, which counts as behind:
// the limit applies.
type polled struct {
	stream *stream
	admin  pulsaradmin.Client    // nil: the ends are asked for
	ends   func() ([]end, error) // no ends and no error: they cannot be asked for
	quit   func()                // leaves the poller

	asking chan struct{} // holds a value while ends runs, and after leave

	// Used by the poller only, about the last poll:
	receiving   bool  // a caller waited for a message
	received    int64 // topics.received
	adminFailed bool  // which was logged
}

// process polls for all consumers and readers of this process.
var process backlog.Pollers[struct{}, *polled]

// poller asks the brokers. It holds no connections of its own.
type poller struct{}

// join has p polled until leave.
func (p *polled) join(s *stream, ends func() ([]end, error)) {
	p.stream, p.ends, p.asking = s, ends, make(chan struct{}, 1)
	p.quit = process.Join(struct{}{}, p, func() backlog.Poller[*polled] { return poller{} })
}

// leave ends the polls of p. The client's question for the ends may take as long as its operation
// timeout if the broker is unavailable; it is left alone after leaveTimeout.
func (p *polled) leave() {
	p.quit()
	select {
	case p.asking <- struct{}{}: // never taken out: nothing is asked any more
	case <-time.After(leaveTimeout):
	}
}

// Poll reports the backlogs of members that have limits.
func (poller) Poll(ctx context.Context, members []*polled) {
	var limited []*polled
	for _, p := range members {
		if p.stream.topics.watch() {
			limited = append(limited, p)
		} else {
			p.receiving = false // messages are not counted
		}
	}
	answers := askAdmins(ctx, limited)
	if ctx.Err() != nil {
		return // the last member has left
	}
	for _, p := range limited {
		if idle := p.idle(); p.admin == nil || !p.byStats(answers, idle) {
			p.byEnds(idle)
		}
	}
}

// Close does nothing.
func (poller) Close() {}

// idle reports whether the client has no messages: a caller waits for one, did so at the last
// poll, and none came between.
func (p *polled) idle() bool {
	receiving, received := p.stream.Receiving(), p.stream.topics.received.Load()
	idle := receiving && p.receiving && received == p.received
	p.receiving, p.received = receiving, received
	return idle
}

// byEnds reports the backlogs by the ends of partitions. It does not wait for the broker's answer.
func (p *polled) byEnds(idle bool) {
	if slices.ContainsFunc(p.stream.topics.all(), (*topic).nonPersistent) {
		return // the broker then returns no ends at all
	}
	select {
	case p.asking <- struct{}{}:
	default: // the last question is not answered yet, or p has left
		return
	}
	g := p.stream.Current()
	go func() {
		defer func() { <-p.asking }()
		// An error is in the client's log, and makes the backlog unknown.
		if ends, err := p.ends(); err == nil && g.Err() == nil {
			p.stream.topics.conclude(ends, idle)
		}
	}()
}
