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

// A fleet has the replicas that drain the topic of a world. Each has a Limiter and consumers of
// each group.
type fleet struct {
	limiters  []*dispatch.Limiter
	consumers []consumer
	groups    []*group
	failed    chan error // the error of the first consumer that failed

	stop context.CancelFunc
	done sync.WaitGroup
}

// A group has what the consumers of a consumer group have received.
type group struct {
	name string

	mu       sync.Mutex // guards the fields below
	received []time.Time
	next     [lanes]int64 // the offset after the last message received, by lane
	had      map[int]bool // consumers that have received a message
	ends     [lanes]int64 // the offset after the last message written, by lane

	waits int64 // calls that had waited at the last call of state; only state uses it
}

// joinTimeout bounds the time until each consumer has received a message.
const joinTimeout = 20 * time.Second

// openFleet starts the replicas. The caller closes the fleet, also after an error.
func openFleet(ctx context.Context, w *world) (f *fleet, err error) {
	running, stop := context.WithCancel(ctx)
	f = &fleet{failed: make(chan error, 1), stop: stop}
	for _, name := range groupNames {
		f.groups = append(f.groups, &group{
			name: name, next: w.starts[name], ends: w.ends, had: map[int]bool{},
		})
	}
	for p := range replicas {
		lim, err := w.openLimiter(ctx, fmt.Sprintf("%s-%d", w.topic, p+1), workerGroups[p])
		if err != nil {
			return f, err
		}
		f.limiters = append(f.limiters, lim)
	}
	for _, g := range f.groups {
		for i := range replicas * consumersEach {
			r, err := w.broker.consumer(g.name, 1+i, f.limiters[i%replicas])
			if err != nil {
				return f, err
			}
			f.consumers = append(f.consumers, r)
			f.done.Go(func() {
				err := g.read(running, r, 1+i)
				if running.Err() == nil {
					select {
					case f.failed <- fmt.Errorf("consumer of %s: %w", g.name, err):
					default:
					}
				}
			})
		}
	}
	return f, nil
}

// Close stops the replicas.
func (f *fleet) Close() error {
	f.stop()
	f.done.Wait()
	errs := make([]error, len(f.consumers))
	var closing sync.WaitGroup
	for i, r := range f.consumers {
		closing.Go(func() { errs[i] = r.Close() })
	}
	closing.Wait()
	for _, lim := range f.limiters {
		errs = append(errs, lim.Close())
	}
	return errors.Join(errs...)
}

// read runs a consumer until ctx ends or it fails.
func (g *group) read(ctx context.Context, r consumer, number int) error {
	for {
		lane, offset, err := r.next(ctx)
		if err != nil {
			return err
		}
		g.note(lane, offset, time.Now(), number)
	}
}

func (g *group) note(lane int, offset int64, at time.Time, number int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.received = append(g.received, at)
	g.had[number] = true
	g.next[lane] = max(g.next[lane], offset+1)
}

func (g *group) wrote(ends [lanes]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ends = ends
}

// backlog returns the number of messages that the group has not received.
func (g *group) backlog() (n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, end := range g.ends {
		n += max(0, end-g.next[p])
	}
	return n
}

// join waits until each consumer has received a message.
func (f *fleet) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	for !f.joined() {
		select {
		case err := <-f.failed:
			return err
		default:
		}
		switch err := sleep(ctx, 5*time.Millisecond); {
		case errors.Is(err, context.DeadlineExceeded):
			return f.late()
		case err != nil:
			return err
		}
	}
	return nil
}

// late tells what consumers and replicas have done, for the error that not all have joined.
func (f *fleet) late() error {
	errs := []error{fmt.Errorf("not all consumers received messages within %s", joinTimeout)}
	for _, g := range f.groups {
		g.mu.Lock()
		errs = append(errs, fmt.Errorf("%s: %d messages, received by %d of %d consumers",
			g.name, len(g.received), len(g.had), replicas*consumersEach))
		g.mu.Unlock()
	}
	for i, lim := range f.limiters {
		permits := lim.Stats().Permits
		errs = append(errs, fmt.Errorf("replica %d: %d requests to the permit store, %d failed",
			i+1, permits.Requests, permits.Errors))
	}
	return errors.Join(errs...)
}

func (f *fleet) joined() bool {
	for _, g := range f.groups {
		g.mu.Lock()
		had := len(g.had)
		g.mu.Unlock()
		if had < replicas*consumersEach {
			return false
		}
	}
	return true
}

// flow waits for a time while consumers run.
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

// inForce waits until a revision of the policies is in force in each replica.
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

// requests returns the number of requests to the permit store.
func (f *fleet) requests() (n int64) {
	for _, lim := range f.limiters {
		n += lim.Stats().Permits.Requests
	}
	return n
}

// count returns the number of messages that groups received from start up to end.
func (f *fleet) count(start, end time.Time, groups ...*group) int {
	return len(received(start, end, groups))
}

// slack bounds how far out of order the consumers of a group record messages.
const slack = time.Second

// received returns the times of the messages that groups received from start up to end, sorted.
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

// maxWindow returns the most messages that all groups received in any second from start to end.
func (f *fleet) maxWindow(start, end time.Time) (highest int) {
	times := received(start, end, f.groups)
	first := 0
	for i, t := range times {
		for t.Sub(times[first]) >= time.Second {
			first++
		}
		highest = max(highest, i-first+1)
	}
	return highest
}

// A groupState is the state of a group in the Limiters.
type groupState struct {
	exempt, caughtUp int // number of replicas
	replicas         int
	waiting          bool
	reason           dispatch.Reason
}

// state returns the state of a group.
func (f *fleet) state(g *group) (s groupState) {
	waits := int64(0)
	for _, lim := range f.limiters {
		for _, sub := range lim.Stats().Subscriptions {
			if sub.Subscription != g.name {
				continue
			}
			s.replicas++
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
