package franzthrottle

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// callbacks are those that a Client of a group has, in front of the user's. Records that are kept
// of partitions that are taken away are dropped: who gets the partitions reads them.
func (c *Client) callbacks() []kgo.Opt {
	revoked, lost := c.settings.revoked, c.settings.lost
	if lost == nil && c.settings.transactional {
		lost = revoked // as kgo's session does
	}
	if revoked == nil && c.settings.marks {
		revoked = c.commitMarked
	}
	all := []kgo.Opt{
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(c.assigned), kgo.OnPartitionsRevoked(c.taken(revoked)), kgo.OnPartitionsLost(c.taken(lost)),
	}
	if c.settings.marks {
		all = append(all, kgo.AutoCommitCallback(c.autoCommitted))
	}
	return all
}

// commitMarked is what kgo does before it gives partitions away, if the user does nothing.
func (c *Client) commitMarked(ctx context.Context, cl *kgo.Client, _ map[string][]int32) {
	cl.CommitOffsetsSync(ctx, cl.MarkedOffsets(), c.autoCommitted)
}

// taken returns the callback for partitions that are taken away.
func (c *Client) taken(user callback) callback {
	return func(ctx context.Context, cl *kgo.Client, partitions map[string][]int32) {
		c.called.Store(true)
		defer c.called.Store(false)
		if user != nil { // it may commit: what was returned is known until it has
			user(kgo.PreCommitFnContext(ctx, c.shelf.cut), cl, partitions)
		}
		c.settleCommitted()
		c.shelf.drop(within(partitions))
		c.shelf.own(c, partitions, false)
	}
}

// assigned is the callback for partitions that the group has assigned.
func (c *Client) assigned(ctx context.Context, cl *kgo.Client, partitions map[string][]int32) {
	c.called.Store(true)
	defer c.called.Store(false)
	c.shelf.own(c, partitions, true)
	if c.settings.assigned != nil {
		c.settings.assigned(kgo.PreCommitFnContext(ctx, c.shelf.cut), cl, partitions)
	}
}

// SetOffsets is kgo's. Records of these partitions that are kept are dropped.
func (c *Client) SetOffsets(offsets map[string]map[int32]kgo.EpochOffset) {
	c.moves(func() { c.Client.SetOffsets(offsets) }, func(topic string, id int32) bool {
		_, found := offsets[topic][id]
		return found
	})
}

// AddConsumePartitions is kgo's.
func (c *Client) AddConsumePartitions(partitions map[string]map[int32]kgo.Offset) {
	if d := c.settings.direct; d != nil {
		d.add(partitions)
	}
	c.Client.AddConsumePartitions(partitions)
}

// AddConsumeTopics is kgo's.
func (c *Client) AddConsumeTopics(topics ...string) {
	if d := c.settings.direct; d != nil {
		d.addTopics(topics)
	}
	c.Client.AddConsumeTopics(topics...)
}

// RemoveConsumePartitions is kgo's. Records of these partitions that are kept are dropped.
func (c *Client) RemoveConsumePartitions(partitions map[string][]int32) {
	if c.settings.direct == nil { // no Limiter, or kgo does nothing
		c.Client.RemoveConsumePartitions(partitions)
		return
	}
	c.settings.direct.remove(partitions)
	c.moves(func() { c.Client.RemoveConsumePartitions(partitions) }, within(partitions))
}

// PurgeTopicsFromClient is kgo's. Records of these topics that are kept are dropped.
func (c *Client) PurgeTopicsFromClient(topics ...string) {
	c.purges(func() { c.Client.PurgeTopicsFromClient(topics...) }, topics)
}

// PurgeTopicsFromConsuming is kgo's. Records of these topics that are kept are dropped.
func (c *Client) PurgeTopicsFromConsuming(topics ...string) {
	c.purges(func() { c.Client.PurgeTopicsFromConsuming(topics...) }, topics)
}

// purges has kgo purge topics, and drops what is kept of them. A group then takes the partitions
// away, whose callback may commit what was returned.
func (c *Client) purges(purge func(), topics []string) {
	in := func(topic string, _ int32) bool { return slices.Contains(topics, topic) }
	if c.lim == nil || c.settings.group == "" {
		if d := c.settings.direct; d != nil {
			d.removeTopics(topics)
		}
		c.moves(purge, in)
		return
	}
	c.alone(func() {
		purge()
		c.shelf.mu.Lock()
		defer c.shelf.mu.Unlock()
		c.shelf.dropKept(in)
	})
}

// moves has kgo move its place in partitions, and drops what is kept of them.
func (c *Client) moves(move func(), in func(topic string, id int32) bool) {
	c.alone(func() {
		move()
		if c.lim != nil {
			c.shelf.drop(in)
		}
	})
}
