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
func (c *Client) poll(ctx context.Context, max int) kgo.Fetches {
	c.shelf.polls()
	defer c.shelf.polled()
	for {
		if ctx != nil && ctx.Err() != nil {
			c.hold()
			return c.handOver(kgo.NewErrFetch(ctx.Err()))
		}
		if c.closing.Err() != nil {
			return kgo.NewErrFetch(kgo.ErrClientClosed)
		}
		c.shelf.pause(c)
		c.settleCommitted()
		if some, free := c.keeps(); some || ctx == nil {
			if fetches := c.round(max, free); len(fetches) > 0 || ctx == nil {
				return c.handOver(fetches)
			}
		}
		if fetches := c.wait(ctx, max); len(fetches) > 0 {
			return c.handOver(fetches)
		}
	}
}

// round returns what may be returned now of what is kept, and of what kgo has fetched: that comes
// first unless there are records that need no permits, so that no topic waits for another.
func (c *Client) round(max int, free bool) (fetches kgo.Fetches) {
	c.hold() // before it looks at what is kept: a callback may drop records
	if !free {
		fetches = c.fetch(noWait, max)
	}
	if left := atMost(max, fetches); left >= 0 {
		fetches = append(fetches, c.admit(left)...)
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
// kgo drops what it has fetched of a topic that is paused. So if topics are told apart, all that it
// has fetched is kept, and not a part.
func (c *Client) fetch(ctx context.Context, max int) kgo.Fetches {
	c.filling.Lock()
	defer c.filling.Unlock()
	if max > 0 && c.sorts() {
		return c.take(c.Client.PollRecords(ctx, 0), true)
	}
	return c.take(c.Client.PollRecords(ctx, max), false)
}

// wait waits until kgo has fetched records, records that are kept have permits, or ctx ends. It
// returns what kgo has fetched.
func (c *Client) wait(ctx context.Context, max int) kgo.Fetches {
	c.allow()
	for c.seeking.Load() > 0 {
		c.awaitSeek()
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	defer c.shelf.waits(nil)
	if !c.shelf.begin(c, max, stop) || c.seeking.Load() > 0 || c.closing.Err() != nil {
		return nil // something has come before stop was known
	}
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
		if _, n := s.next(c, t, max); n > 0 && (t.waiter == nil || t.waiter.ended) {
			return false
		}
	}
	return true
}

// awaitSeek returns when no call of alone is running.
func (c *Client) awaitSeek() {
	c.seek.Lock()
	defer c.seek.Unlock()
}

// alone calls f, which moves kgo's place, while kgo hands out no records, and makes a poll that
// waits look again. While a callback runs, kgo hands out none.
func (c *Client) alone(f func()) {
	if c.lim == nil || c.called.Load() {
		f()
		return
	}
	c.seek.Lock()
	defer c.seek.Unlock()
	c.seeking.Add(1)
	defer c.seeking.Add(-1)
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
