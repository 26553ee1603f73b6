package franzthrottle

import (
	"context"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A waiter waits for permits for the first records of a topic that are kept, in line with other
// consumers. It stays there while the caller works on records of other topics. The shelf's mu
// guards its fields.
type waiter struct {
	sub  *dispatch.Subscription // see next
	stop context.CancelFunc
	left bool // nobody takes the permits any more

	began time.Time
	ended bool
	grant dispatch.Grant
	err   error
}

// freshFor is how long the permits of a waiter are kept for a poll to come and take them. Permits
// are for now: what is used later than they came adds to what the limit allows.
const freshFor = 25 * time.Millisecond

// waitFor has a waiter wait for permits for the first records of a topic, up to max. The caller
// holds s.mu.
func (s *shelf) waitFor(c *Client, t *topic, max int) {
	sub, n := s.next(c, t, max)
	ctx, stop := context.WithCancel(c.closing)
	w := &waiter{sub: sub, stop: stop, began: time.Now()}
	t.waiter = w
	s.waiters.Go(func() {
		defer stop()
		grant, err := sub.Acquire(ctx, n)
		if !s.offer(t, w, grant, err) {
			return
		}
		select {
		case <-ctx.Done(): // they were taken
		case <-time.After(freshFor):
			s.expire(t, w)
		}
	})
}

// offer offers what a waiter of a topic has got to polls. It returns false if nobody takes it: the
// waiter was abandoned, or it is a strict slot and no poll waits.
func (s *shelf) offer(t *topic, w *waiter, grant dispatch.Grant, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.left {
		grant.Done(0, 0)
		return false
	}
	w.ended, w.grant, w.err = true, grant, err
	if s.waiting == nil && err == nil && w.sub.Paced() {
		t.missed(w)
		t.abandon()
		return false
	}
	s.wakeLocked()
	return true
}

// expire gives back permits that no poll has taken in time.
func (s *shelf) expire(t *topic, w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.waiter == w {
		t.missed(w)
		t.abandon()
	}
}

// abandon ends the waiter of a topic, if there is one. Its permits go back. The caller holds the
// shelf's mu.
func (t *topic) abandon() {
	if w := t.waiter; w != nil {
		w.left, t.waiter = true, nil
		w.stop()
		w.grant.Done(0, 0)
	}
}

// abandonAll ends all waiters.
func (s *shelf) abandonAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.topics {
		t.abandon()
	}
}
