package dispatch_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A message that waits for its bytes holds no message permit meanwhile.
func TestRefusedBytesGiveMessagesBack(t *testing.T) {
	p := perSecond(10)
	p.ByteRate = policy.PerSecond(8000)
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		const n = 80
		start := time.Now()
		for range n {
			_, err := sub.AcquireSized(t.Context(), 1000)
			require.NoError(t, err)
		}
		within(t, "80 messages at 8/s", time.Since(start), 9500*time.Millisecond, 10500*time.Millisecond)
		for _, l := range lim.Stats().Subscriptions[0].Limits {
			if l.Reason == dispatch.ReasonMessages {
				assert.Equal(t, int64(n), l.Granted-l.Returned, "message permits taken")
			}
		}
	})
}

// A grant of fewer messages than requested is charged the bytes of those granted, even if it is
// never settled.
func TestFewerMessagesAreChargedFewerBytes(t *testing.T) {
	p := perSecond(10)
	p.ByteRate = policy.PerSecond(100 * 1024)
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		got := 0
		for range 20 {
			time.Sleep(50 * time.Millisecond)
			g, err := sub.Acquire(t.Context(), 1000)
			require.NoError(t, err)
			got += g.N()
		}
		for _, l := range lim.Stats().Subscriptions[0].Limits {
			if l.Reason == dispatch.ReasonBytes {
				assert.Equal(t, int64(got)*1024, l.Granted-l.Returned, "bytes of %d messages of unknown size", got)
			}
		}
	})
}

// A grant that arrives just when its caller's context ends goes back.
func TestGrantsLostToACancelledContextComeBack(t *testing.T) {
	const slots = 100
	p := policy.Policy{MaxInFlight: new(int64(slots))}
	limited(t, p, func(t *testing.T, lim *dispatch.Limiter, sub *dispatch.Subscription) {
		for round := range 50 {
			held, _, ok := sub.TryAcquire(slots)
			require.True(t, ok, "round %d", round)
			require.Equal(t, slots, held.N(), "round %d: all came back", round)
			ctx, cancel := context.WithCancel(t.Context())
			var waiting sync.WaitGroup
			for range slots {
				waiting.Go(func() {
					if g, err := sub.Acquire(ctx, 1); err == nil {
						g.Done(1, 0)
					}
				})
			}
			synctest.Wait() // all callers wait
			cancel()
			held.Done(slots, 0) // serves some callers that have not left yet
			waiting.Wait()
			synctest.Wait()
		}
	})
}

// The last allocated slot of a strict limit goes back when its caller or its replica leaves.
func TestTheLastStrictSlotComesBack(t *testing.T) {
	for how, leave := range map[string]func(r *replica){
		"the caller":  func(r *replica) { r.stop() },
		"the replica": (*replica).leave,
	} {
		fleets(t, how, strictly(t, "1/20s"), func(t *testing.T, f *fleet) {
			a, b := f.join(0, "group"), f.join(1, "group")
			_, err := a.sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			first := time.Since(f.start)
			a.greedy(1) // has the slot 20 s later
			time.Sleep(2 * second)
			leave(a)
			time.Sleep(2 * second)
			b.greedy(1)
			time.Sleep(30 * second)
			require.Zero(t, f.by(0, 0, time.Hour))
			within(t, "the next slot", f.gapAfter(first), 19900*time.Millisecond, 21*second)
		})
	}
}

// gapAfter returns the time from at to the next dispatch, or an hour if there was none.
func (f *fleet) gapAfter(at time.Duration) time.Duration {
	for _, e := range f.dispatched.Events() {
		if e.At > at {
			return e.At - at
		}
	}
	return time.Hour
}

// When the last worker of a group has left cleanly, its permits are free for all at once: they are
// not kept for a worker that may be cut off.
func TestGroupsAreLeft(t *testing.T) {
	fleets(t, "", divided(t, "1000/s", "eu", "us"), func(t *testing.T, f *fleet) {
		eu, us := f.joinGroup(0, "group", "eu"), f.joinGroup(1, "group", "us")
		eu.greedy(100)
		us.greedy(100)
		time.Sleep(5 * second)
		within(t, "eu beside us", f.by(0, 2*second, 5*second), 1450, 1550)
		us.leave()
		left := time.Since(f.start)
		time.Sleep(5 * second)
		within(t, "eu alone", f.by(0, left+second, left+5*second), 3500, 4050)
	})
}
