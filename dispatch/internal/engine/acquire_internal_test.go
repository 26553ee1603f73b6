package engine

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

// open starts an engine whose only lane has the limits of a policy, in virtual time.
func open(t *testing.T, settings policy.Policy) (*Engine, *Lane) {
	e := Start(Config{
		Store: memory.New(), Cluster: "c", Replica: "r", Rand: rand.New(rand.NewPCG(1, 2)),
		Log: slog.New(slog.DiscardHandler),
	})
	topic, err := policy.ParseTopic("kafka://acme/shop/orders")
	require.NoError(t, err)
	set, err := policy.NewSet([]policy.Entry{{Scope: policy.TopicScope(topic), Settings: settings}})
	require.NoError(t, err)
	e.ApplyPolicies(policy.Snapshot{Set: set, Identity: "store", Revision: 1}, e.Match(set))
	var h Handle
	require.NoError(t, e.Open(&h, resolve.LaneID{Topic: topic, Subscription: "billing"}))
	return e, h.Lane
}

// oneAnHour is a strict limit, the first slot of which is free.
var oneAnHour = policy.Policy{
	MessageRate: policy.Rate{Permits: 1, Period: time.Hour},
	Sharing:     policy.Sharing{Mode: policy.Strict},
}

// An interrupted sharing does something at the end of a step.
type interrupted struct {
	sharing.Sharing
	do func()
}

func (s interrupted) Covered(now float64) bool {
	s.do()
	return s.Sharing.Covered(now)
}

// TestTryDuringAStep: a step does not refuse a try that it did not know when it made its requests.
func TestTryDuringAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l := open(t, oneAnHour)
		defer e.Close()
		synctest.Wait()
		tried := make(chan bool, 1)
		e.mu.Lock()
		share := l.shares.inForce.all[0]
		mode := share.Mode
		share.Mode = interrupted{mode, func() {
			share.Mode = mode // once
			go func() {
				_, _, ok := l.TryAcquire(1)
				tried <- ok
			}()
			synctest.Wait()
		}}
		e.mu.Unlock()
		l.touch(true)
		assert.True(t, <-tried)
	})
}

// TestLateCallers: a caller that wakes too late for its slot waits on at its place in the queue,
// and ends with the engine. Virtual time has no late wake-ups, so the test serves the callers.
func TestLateCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l := open(t, oneAnHour)
		_, err := l.Acquire(t.Context(), 1, -1) // the first slot is free
		require.NoError(t, err)

		time.Sleep(time.Second)
		slot := Grant{N: 1, Admission: l.admission.Load()}
		ended := make(chan error)
		for range 4 {
			go func() {
				_, err := l.Acquire(context.Background(), 1, -1)
				ended <- err
			}()
			synctest.Wait()
		}
		serveLate := func(callers ...*caller) {
			for _, c := range callers {
				require.True(t, l.queue.leave(c))
				c.grant, c.until = slot, 1 // long ago
				c.ready <- struct{}{}
				synctest.Wait()
			}
		}
		numbers := func() (n []uint64) {
			for _, c := range l.queue.callers {
				n = append(n, c.number)
			}
			return n
		}
		before := numbers()
		a, b := l.queue.callers[0], l.queue.callers[1]
		serveLate(a, b)
		assert.Equal(t, before, numbers())
		serveLate(b, a, b)
		assert.Equal(t, before, numbers())
		assert.EqualValues(t, 4, l.queue.wanted)

		require.True(t, l.queue.leave(a))
		e.Close()
		for range 3 {
			require.ErrorIs(t, <-ended, ErrClosed)
		}
		a.grant, a.until = slot, 1
		a.ready <- struct{}{}
		require.ErrorIs(t, <-ended, ErrClosed, "late, and after Close")
	})
}

// TestLateTry: a caller that does not wait and wakes too late for its slot gets none, and the slot
// is lost.
func TestLateTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l := open(t, oneAnHour)
		defer e.Close()
		_, err := l.Acquire(t.Context(), 1, -1)
		require.NoError(t, err)
		time.Sleep(time.Second)
		e.mu.Lock() // for the loop to wait
		tried := make(chan bool)
		go func() {
			_, _, ok := l.TryAcquire(1)
			tried <- ok
		}()
		var c *caller
		for c == nil {
			runtime.Gosched()
			l.queue.mu.Lock()
			if len(l.queue.callers) > 0 {
				c = l.queue.callers[0]
			}
			l.queue.mu.Unlock()
		}
		require.True(t, l.queue.leave(c))
		c.grant, c.until = Grant{N: 1, Admission: l.admission.Load()}, 1 // long ago
		c.ready <- struct{}{}
		e.mu.Unlock()
		assert.False(t, <-tried)
		e.mu.Lock()
		defer e.mu.Unlock()
		assert.EqualValues(t, 1, l.shares.inForce.all[0].Stats(2).Lost)
	})
}
