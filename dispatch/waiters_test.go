package dispatch_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

func queueing(t testing.TB, text string, reserved int64) policy.Policy {
	t.Helper()
	p := strictly(t, text)
	p.Sharing.Wait, p.Sharing.MaxReserved = policy.WaitQueue, &reserved
	return p
}

// If all slots are allocated, callers queue in order: the line is as full as without a queue, and
// all replicas get the same.
func TestQueueForSlots(t *testing.T) {
	for _, reserved := range []int64{0, 1, 3} {
		for _, deaf := range []bool{false, true} {
			fleets(t, "", queueing(t, "20/s", reserved), func(t *testing.T, f *fleet) {
				f.store.Locked(func() { f.store.NoWakes = deaf })
				for i := range 15 {
					r := f.join(i, "group")
					for range 1 + i%3 {
						r.greedy(1)
					}
				}
				time.Sleep(60 * second)
				calls, requests := 1180, 2.1
				if reserved == 0 { // no slots ahead: each request is a round trip late
					calls, requests = 1150, 3.3
				}
				within(t, "calls", f.between(0, 60*second), calls, 1201)
				shortest, _ := f.gaps(0, time.Hour)
				within(t, "the shortest gap", shortest, 45*time.Millisecond, 60*time.Millisecond)
				var by []int
				for i := range 15 {
					by = append(by, f.by(i, 0, 60*second))
				}
				within(t, "the least served, with one caller and not three", slices.Min(by),
					slices.Max(by)*75/100, slices.Max(by))
				within(t, "requests a message", f.requestsPerMessage(), 1.0, requests)
			})
		}
	}
}

// A slot that is given back wakes the caller whose turn it is, before the time that the caller was
// told.
func TestQueueWakes(t *testing.T) {
	fleets(t, "", queueing(t, "1/1m", 1), func(t *testing.T, f *fleet) {
		first := f.join(0, "group")
		take := func(r *replica, ctx context.Context) {
			r.wg.Go(func() {
				if _, err := r.sub.Acquire(ctx, 1); err == nil {
					r.record(r.id, 1)
				}
			})
		}
		take(first, f.ctx) // now
		time.Sleep(second)
		impatient, cancel := context.WithCancel(f.ctx)
		take(f.join(1, "group"), impatient) // in a minute
		time.Sleep(second)
		take(f.join(2, "group"), f.ctx) // all slots are allocated: in two minutes
		time.Sleep(10 * second)
		cancel()
		time.Sleep(49 * second)
		within(t, "the third, in place of the second", f.by(2, 0, 61*second), 1, 1)
		within(t, "wake-ups", f.store.Woken, 1, 2)
	})
}

// Each waiting caller is served in turn, whatever callers came before it.
func TestTheSecondInLine(t *testing.T) {
	for _, r := range []int64{10, 100, 1000} {
		synctest.Test(t, func(t *testing.T) {
			lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(perSecond(r))})
			require.NoError(t, err)
			sub, err := lim.Subscription(topic, "group")
			require.NoError(t, err)
			worst := time.Duration(0)
			for i := range 200 {
				for ok := true; ok; {
					_, _, ok = sub.TryAcquire(1)
				}
				done := make(chan time.Duration, 2)
				for range 2 {
					go func() {
						began := time.Now()
						_, err := sub.Acquire(t.Context(), 1)
						assert.NoError(t, err)
						done <- time.Since(began)
					}()
				}
				for range 2 {
					worst = max(worst, <-done)
				}
				time.Sleep(time.Duration(i*3) * time.Millisecond)
			}
			within(t, "the longest wait", worst, 0, 3*time.Second/time.Duration(r)+4*time.Millisecond)
			require.NoError(t, lim.Close())
		})
	}
}
