package franzthrottle

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// A topic misses its turn if the permits for which its waiter has waited come while the caller
// works on records of other topics, and go back. Polls then wait for its next turn before they
// return records of others. They wait in all as long as the waiter has waited, since the next turn
// may take as long, within these bounds: it may never come, since the limit may be paused by then.
const (
	leastOwed = time.Second
	mostOwed  = 10 * time.Second
)

// missed notes that a topic has missed the turn for which w has waited. The caller holds the
// shelf's mu.
func (t *topic) missed(w *waiter) { t.owed = min(max(leastOwed, time.Since(w.began)), mostOwed) }

// owedFirst moves the topics that have missed a turn to the front, that which is owed most first.
// The caller holds s.mu.
func (s *shelf) owedFirst() {
	slices.SortStableFunc(s.order, func(a, b *topic) int { return cmp.Compare(b.owed, a.owed) })
}

// awaitTurn waits for the permits of a topic that has missed its turn while the caller worked. It
// waits at most as long as the caller worked, and at most aheadFor: that is a topic's price for the
// others. Nothing has been taken yet, so rebalances and calls that move kgo's place go on.
func (c *Client) awaitTurn(ctx context.Context, max int, worked time.Duration) {
	s := &c.shelf
	if !s.owes() {
		return
	}
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, end := context.WithTimeout(ctx, min(worked, aheadFor))
	defer end()
	defer s.waits(nil)
	defer s.pay(time.Now())
	for ctx.Err() == nil {
		waiting, stop := context.WithCancel(ctx)
		waits := s.beginTurn(c, max, stop) && c.seeking.Load() == 0 && c.closing.Err() == nil
		if waits {
			<-waiting.Done()
		}
		stop()
		if !waits {
			return
		}
	}
}

// beginTurn notes what ends the wait for a turn, and has the topics that have missed one wait for
// the next. It returns false if there is nothing to wait for: one has its permits, or none waits.
func (s *shelf) beginTurn(c *Client, max int, stop func()) (waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = stop
	for _, t := range s.order {
		sub, n := s.next(c, t, max)
		switch w := t.waiter; {
		case t.owed == 0 || n == 0:
		case w == nil:
			s.waitFor(c, t, max)
			waits = true
		case w.ended || w.sub != sub:
			return false
		default:
			waits = true
		}
	}
	return waits
}

// owes reports whether a topic that has records has missed its turn, and has returned none since.
func (s *shelf) owes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.order, func(t *topic) bool { return t.owed > 0 && s.ready(t) > 0 })
}

// pay notes that a poll has waited since then for topics that have missed their turns.
func (s *shelf) pay(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.order {
		t.owed = max(0, t.owed-time.Since(since))
	}
}
