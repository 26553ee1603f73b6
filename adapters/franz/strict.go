package franzthrottle

import "time"

// The slot of a strict limit is used at once or not at all. One that comes between two polls goes
// back at once, and the next poll finds it if it has not expired by then: that of a limit of a few
// messages a second has. So a topic that was served within leavesFor leaves the line when a poll
// ends, and the next poll takes the slot that is free. One that has had none for that long stays in
// line: others may wait, too.
const leavesFor = 500 * time.Millisecond

// triesFor is how long a poll goes on to try one topic after another. Where the permit store
// answers late or not at all, the others get in line instead.
const triesFor = 50 * time.Millisecond

// trySlots takes a strict slot that is free now for each topic that is not in line. It waits for
// the permit store's answer. Only polls change s.order's order, and give topics waiters.
func (s *shelf) trySlots(c *Client, max int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	for _, t := range s.order {
		if t.waiter != nil {
			continue
		}
		sub, n := s.next(c, t, max)
		if n == 0 || !sub.Paced() || time.Since(began) > triesFor {
			continue
		}
		s.mu.Unlock()
		grant, _, ok := sub.TryAcquire(1)
		s.mu.Lock()
		if ok {
			t.waiter = &waiter{sub: sub, stop: func() {}, began: time.Now(), ended: true, grant: grant}
		}
	}
}

// leaveLines ends the waiters of topics that leave the line for strict slots, when a poll ends. A
// slot that the poll has not taken goes back.
func (s *shelf) leaveLines() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.order {
		switch w := t.waiter; {
		case w == nil || !w.sub.Paced():
		case w.ended:
			t.missed(w)
			t.abandon()
		case time.Since(t.servedAt) < leavesFor:
			t.abandon()
		}
	}
}
