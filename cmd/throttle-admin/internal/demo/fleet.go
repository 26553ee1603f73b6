package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A fleet is the processes that drain a world's topic: each has a Limiter and readers of every group.
type fleet struct {
	limiters []*dispatch.Limiter
	readers  []drainer
	groups   []*group
	failed   chan error // the first reader's that failed

	stop context.CancelFunc
	done sync.WaitGroup
}

// A group is what the readers of a consumer group have received.
type group struct {
	name string

	mu       sync.Mutex // guards the fields below
	received []time.Time
	next     [demoLanes]int64 // offsets behind the messages received
	had      map[int]bool     // readers that have received some
	ends     [demoLanes]int64 // offsets behind the messages written

	waits int64 // calls that had waited when state was called last; for state only
}

// joinTimeout bounds how long it may take until every reader has messages.
const joinTimeout = 20 * time.Second

// openFleet starts the processes. The fleet is to be closed even if there is an error.
func openFleet(ctx context.Context, w *world) (f *fleet, err error) {
	running, stop := context.WithCancel(ctx)
	f = &fleet{failed: make(chan error, 1), stop: stop}
	for _, name := range demoGroups {
		f.groups = append(f.groups, &group{name: name, next: w.starts[name], ends: w.ends, had: map[int]bool{}})
	}
	for p := range demoProcesses {
		lim, err := w.openLimiter(ctx, fmt.Sprintf("%s-%d", w.topic, p+1), demoWorkers[p])
		if err != nil {
			return f, err
		}
		f.limiters = append(f.limiters, lim)
	}
	for _, g := range f.groups {
		for i := range demoProcesses * demoReaders {
			r, err := w.broker.reader(g.name, 1+i, f.limiters[i%demoProcesses])
			if err != nil {
				return f, err
			}
			f.readers = append(f.readers, r)
			f.done.Go(func() {
				if err := g.read(running, r, 1+i); running.Err() == nil {
					select {
					case f.failed <- fmt.Errorf("a reader of %s: %w", g.name, err):
					default:
					}
				}
			})
		}
	}
	return f, nil
}

// Close ends the processes.
func (f *fleet) Close() error {
	f.stop()
	f.done.Wait()
	errs := make([]error, len(f.readers))
	var closing sync.WaitGroup
	for i, r := range f.readers {
		closing.Go(func() { errs[i] = r.Close() })
	}
	closing.Wait()
	for _, lim := range f.limiters {
		errs = append(errs, lim.Close())
	}
	return errors.Join(errs...)
}

// read is a consumer's loop, until ctx ends or something fails.
func (g *group) read(ctx context.Context, r drainer, reader int) error {
	for {
		lane, offset, err := r.next(ctx)
		if err != nil {
			return err
		}
		g.note(lane, offset, time.Now(), reader)
	}
}

func (g *group) note(lane int, offset int64, at time.Time, reader int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.received = append(g.received, at)
	g.had[reader] = true
	g.next[lane] = max(g.next[lane], offset+1)
}

func (g *group) wrote(ends [demoLanes]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ends = ends
}

// backlog is what the group has not received.
func (g *group) backlog() (n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, end := range g.ends {
		n += max(0, end-g.next[p])
	}
	return n
}

// join waits until every reader has had messages.
func (f *fleet) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, joinTimeout, fmt.Errorf("the readers did not all get messages within %s", joinTimeout))
	defer cancel()
	for !f.joined() {
		select {
		case err := <-f.failed:
			return err
		default:
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) joined() bool {
	for _, g := range f.groups {
		g.mu.Lock()
		had := len(g.had)
		g.mu.Unlock()
		if had < demoProcesses*demoReaders {
			return false
		}
	}
	return true
}

// flow lets messages flow for a time.
func (f *fleet) flow(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return errors.New("interrupted: nothing was measured")
	case err := <-f.failed:
		return err
	case <-time.After(d):
		return nil
	}
}

// inForce waits until every process has a revision of the policies in force.
func (f *fleet) inForce(ctx context.Context, revision int64) error {
	for _, lim := range f.limiters {
		for lim.Stats().Revision < revision {
			if err := sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// requests counts the allocations of all processes.
func (f *fleet) requests() (n int64) {
	for _, lim := range f.limiters {
		n += lim.Stats().Permits.Requests
	}
	return n
}

// count is what groups received from start up to end.
func (f *fleet) count(start, end time.Time, groups ...*group) int {
	return len(received(start, end, groups))
}

// slack is how much out of order the readers of a group may note what they receive.
const slack = time.Second

// received is when groups received what they did from start up to end, sorted.
func received(start, end time.Time, groups []*group) (times []time.Time) {
	for _, g := range groups {
		g.mu.Lock()
		i, _ := slices.BinarySearchFunc(g.received, start.Add(-slack), time.Time.Compare)
		for _, t := range g.received[i:] {
			if !t.Before(start) && t.Before(end) {
				times = append(times, t)
			}
		}
		g.mu.Unlock()
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// maxWindow is the most messages that all groups received in any second from start to end.
func (f *fleet) maxWindow(start, end time.Time) (most int) {
	times := received(start, end, f.groups)
	first := 0
	for i, t := range times {
		for t.Sub(times[first]) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// A groupState is what the Limiters say of a group.
type groupState struct {
	exempt, caughtUp int // processes where it is
	processes        int
	waiting          bool
	reason           dispatch.Reason
}

// state asks the Limiters why the group waits, or does not.
func (f *fleet) state(g *group) (s groupState) {
	waits := int64(0)
	for _, lim := range f.limiters {
		for _, sub := range lim.Stats().Subscriptions {
			if sub.Subscription != g.name {
				continue
			}
			s.processes++
			if sub.Exempt {
				s.exempt++
			}
			if sub.CaughtUp {
				s.caughtUp++
			}
			if sub.Reason != dispatch.ReasonNone {
				s.reason = sub.Reason
			}
			for why, n := range sub.Waits {
				waits += n
				if s.reason == dispatch.ReasonNone {
					s.reason = why
				}
			}
		}
	}
	s.waiting = waits > g.waits
	g.waits = waits
	return s
}

func round3(x float64) float64 { return math.Round(x*1000) / 1000 }
