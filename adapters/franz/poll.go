package franzthrottle

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// poll is PollRecords of the caller that is served.
//
// kgo blocks rebalances from a poll with records until they are allowed. So no callback runs
// between kgo's poll and take, and none while records that are kept are returned.
func (c *Client) poll(ctx context.Context, max int) (fetches kgo.Fetches) {
	over := hasEnded(ctx)
	defer func() { c.polledAt = time.Now() }()
	if !over {
		c.awaitTurn(ctx, max, time.Since(c.polledAt))
		c.shelf.trySlots(c, max)
		defer c.shelf.leaveLines()
	}
	for {
		if over {
			c.hold()
			return c.handOver(kgo.NewErrFetch(ctx.Err()))
		}
		if c.closing.Err() != nil {
			return kgo.NewErrFetch(kgo.ErrClientClosed)
		}
		over = hasEnded(ctx) // before it looks at what has come
		c.shelf.pause(c)
		c.settleCommitted()
		if ctx == nil || c.keeps() {
			fetches = c.round(max, ctx != nil)
		}
		if len(fetches) == 0 && ctx != nil && !over {
			fetches = c.wait(ctx, max)
		}
		if len(fetches) > 0 || ctx == nil {
			return c.handOver(fetches)
		}
	}
}

// hasEnded reports whether a poll's context has ended; a nil ctx never does.
func hasEnded(ctx context.Context) bool { return ctx != nil && ctx.Err() != nil }

// round returns what may be returned now of what kgo has fetched, and of what is kept. waits says
// that the poll waits if that is nothing.
func (c *Client) round(max int, waits bool) (fetches kgo.Fetches) {
	c.hold() // before it looks at what is kept: a callback may drop records
	if !c.filling.TryLock() {
		return nil
	}
	defer c.filling.Unlock()
	fetches = c.fetch(noWait, max)
	if left := atMost(max, fetches); left >= 0 {
		fetches = append(fetches, c.admit(left, !waits || len(fetches) > 0)...)
	}
	return fetches
}

// atMost returns how many records may still be returned; 0 = any number, -1 = none.
func atMost(max int, fetches kgo.Fetches) int {
	if max <= 0 {
		return 0
	}
	if n := max - fetches.NumRecords(); n > 0 {
		return n
	}
	return -1
}

// hold blocks rebalances without a poll: one with a context that has ended counts as one with
// records.
func (c *Client) hold() {
	if c.settings.group != "" {
		c.Client.PollRecords(ended, 1)
	}
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// noWait has kgo return what it has fetched, at once.
var noWait context.Context

// allow lets rebalances go on, unless the user blocks them.
func (c *Client) allow() {
	if !c.shelf.returned.Load() {
		c.Client.AllowRebalance()
	}
}

// handOver returns fetches: from now on, their records may be committed. If the user blocks
// rebalances, these wait from now on, as in kgo: for fetches with records or an error.
func (c *Client) handOver(fetches kgo.Fetches) kgo.Fetches {
	c.shelf.pause(c)
	if c.settings.blocks && len(fetches) > 0 {
		c.shelf.returned.Store(true)
	}
	c.allow()
	return fetches
}

// fetch polls kgo, and returns what may be returned of that now. With a nil ctx, it does not wait.
// The caller holds c.filling.
// kgo drops what it has fetched of a topic that is paused. So if topics are told apart, all that it
// has fetched is kept, and not a part.
func (c *Client) fetch(ctx context.Context, max int) kgo.Fetches {
	if max > 0 && c.sorts() {
		return c.take(c.Client.PollRecords(ctx, 0), true)
	}
	return c.take(c.Client.PollRecords(ctx, max), false)
}

// wait waits until kgo has fetched records, records that are kept have permits, or ctx ends. It
// returns what kgo has fetched.
func (c *Client) wait(ctx context.Context, max int) kgo.Fetches {
	c.allow()
	c.awaitSeek(ctx)
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	defer c.shelf.waits(nil)
	if !c.shelf.begin(c, max, stop) || c.seeking.Load() > 0 || c.closing.Err() != nil {
		return nil // something has come before stop was known
	}
	if !c.filling.TryLock() {
		return nil
	}
	defer c.filling.Unlock()
	fetches := c.fetch(waiting, max)
	stop()
	if errors.Is(fetches.Err0(), waiting.Err()) {
		return nil // what ended the wait is looked at
	}
	return fetches
}

// waits notes what ends the wait of the poll that is served; nil: it does not wait.
func (s *shelf) waits(stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = stop
}

// begin notes what ends the wait of the poll that is served. It returns false if there is nothing
// to wait for: a waiter has its permits, or a topic with records has none.
func (s *shelf) begin(c *Client, max int, stop func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = stop
	s.pauseLocked(c) // records were kept or dropped since
	for _, t := range s.order {
		switch sub, n := s.next(c, t, max); {
		case n == 0:
			t.abandon()
		case t.waiter == nil || t.waiter.ended || t.waiter.sub != sub:
			return false
		}
	}
	return true
}

// awaitSeek waits until no call of alone is running, or ctx or the Client ends.
func (c *Client) awaitSeek(ctx context.Context) {
	for c.seeking.Load() > 0 && c.seek.Lock(ctx, c.closing) == nil {
		c.seek.Unlock()
	}
}

// alone calls f, which moves kgo's place, while polls take no records from kgo or the shelf, and
// makes a poll that waits look again. While a callback runs, they take none.
func (c *Client) alone(f func()) {
	if c.lim == nil || c.called.Load() {
		f()
		return
	}
	c.seeking.Add(1)
	defer c.seeking.Add(-1)
	_ = c.seek.Lock(context.Background(), context.Background()) // never fails
	defer c.seek.Unlock()
	c.shelf.wake()
	for !c.filling.TryLock() {
		if c.called.Load() {
			f()
			return
		}
		time.Sleep(time.Millisecond) // the poll looks again, or waits for a callback
	}
	defer c.filling.Unlock()
	f()
}
