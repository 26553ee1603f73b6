package franzthrottle

import (
	"context"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A waiter waits for permits for the first records of a topic that are kept, in line with other
// consumers, for as long as that takes: a poll that returns records of other topics does not end
// it. The shelf's mu guards its fields.
type waiter struct {
	sub  *dispatch.Subscription // see next
	stop context.CancelFunc
	left bool // nobody takes the permits any more

	ended bool
	grant dispatch.Grant
	err   error
}

// waitFor has a waiter wait for permits for n records of a topic. The caller holds s.mu.
func (s *shelf) waitFor(closing context.Context, t *topic, sub *dispatch.Subscription, n int) {
	ctx, stop := context.WithCancel(closing)
	w := &waiter{sub: sub, stop: stop}
	t.waiter = w
	s.waiters.Go(func() {
		defer stop()
		grant, err := sub.Acquire(ctx, n)
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.left {
			grant.Done(0, 0)
			return
		}
		w.ended, w.grant, w.err = true, grant, err
		s.wakeLocked()
	})
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

// leaveAfter is how long waiters go on without a poll: who does not poll is to hold no permits.
const leaveAfter = time.Second

// polls notes that a poll begins.
func (s *shelf) polls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leave != nil {
		s.leave.Stop()
		s.leave = nil
	}
}

// polled notes that a poll ends.
func (s *shelf) polled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.topics {
		if t.waiter != nil {
			s.leave = time.AfterFunc(leaveAfter, s.abandonAll)
			return
		}
	}
}
