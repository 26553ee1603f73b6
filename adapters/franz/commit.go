package franzthrottle

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kgo counts a record as consumed when it is polled, and a commit must not go further than to the
// records that were returned. It does not, wherever it happens during a poll.

// returnedTo returns the offset after the last record of a partition that was returned. found is
// false if none was, since the partition was assigned or sought.
func (s *shelf) returnedTo(topic string, id int32) (end kgo.EpochOffset, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[topic]
	if t == nil || t.positions[id] == nil || t.positions[id].next < 0 {
		return end, false
	}
	p := t.positions[id]
	return kgo.EpochOffset{Epoch: p.epoch, Offset: p.next}, true
}

// UncommittedOffsets returns the offsets after the records that were returned and are not
// committed, as kgo.Client.UncommittedOffsets does.
func (c *Client) UncommittedOffsets() map[string]map[int32]kgo.EpochOffset {
	all := c.Client.UncommittedOffsets()
	if c.lim == nil {
		return all
	}
	committed := c.Client.CommittedOffsets()
	for name, ids := range all {
		for id, o := range ids {
			end, found := c.shelf.returnedTo(name, id)
			if !found || end.Offset == committed[name][id].Offset {
				delete(ids, id)
			} else if o.Offset > end.Offset {
				ids[id] = end
			}
		}
		if len(ids) == 0 {
			delete(all, name)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// CommitUncommittedOffsets commits the records that were returned, and waits for the answer.
func (c *Client) CommitUncommittedOffsets(ctx context.Context) (err error) {
	if c.lim == nil {
		return c.Client.CommitUncommittedOffsets(ctx)
	}
	c.CommitOffsetsSync(ctx, c.UncommittedOffsets(), func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, failed error) {
		err = failed
		if resp == nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				err = cmp.Or(err, kerr.ErrorForCode(p.ErrorCode))
			}
		}
	})
	return err
}

// cut lowers the offsets of a commit by a kgo.Client in a callback to what was returned.
func (s *shelf) cut(r *kmsg.OffsetCommitRequest) error {
	for i := range r.Topics {
		t := &r.Topics[i]
		t.Partitions = cutTo(s, t.Topic, t.Partitions, func(p *kmsg.OffsetCommitRequestTopicPartition) (int32, *int64, *int32) {
			return p.Partition, &p.Offset, &p.LeaderEpoch
		})
	}
	r.Topics = slices.DeleteFunc(r.Topics, func(t kmsg.OffsetCommitRequestTopic) bool { return len(t.Partitions) == 0 })
	return nil
}

// cutTxn is cut for a commit in a transaction.
func (s *shelf) cutTxn(r *kmsg.TxnOffsetCommitRequest) error {
	for i := range r.Topics {
		t := &r.Topics[i]
		t.Partitions = cutTo(s, t.Topic, t.Partitions, func(p *kmsg.TxnOffsetCommitRequestTopicPartition) (int32, *int64, *int32) {
			return p.Partition, &p.Offset, &p.LeaderEpoch
		})
	}
	r.Topics = slices.DeleteFunc(r.Topics, func(t kmsg.TxnOffsetCommitRequestTopic) bool { return len(t.Partitions) == 0 })
	return nil
}

// cutTo lowers the offsets of a topic's partitions to what was returned, and leaves out partitions
// of which nothing was.
func cutTo[P any](s *shelf, topic string, all []P, of func(*P) (id int32, offset *int64, epoch *int32)) []P {
	left := all[:0]
	for i := range all {
		id, offset, epoch := of(&all[i])
		end, found := s.returnedTo(topic, id)
		if !found {
			continue
		}
		if *offset > end.Offset {
			*offset, *epoch = end.Offset, end.Epoch
		}
		left = append(left, all[i])
	}
	return left
}

// CommitRecords is kgo's.
func (c *Client) CommitRecords(ctx context.Context, records ...*kgo.Record) error {
	defer c.settleCommitted()
	return c.Client.CommitRecords(ctx, records...)
}

// CommitMarkedOffsets is kgo's.
func (c *Client) CommitMarkedOffsets(ctx context.Context) error {
	defer c.settleCommitted()
	return c.Client.CommitMarkedOffsets(ctx)
}

// A committed is called when a commit has ended.
type committed = func(*kgo.Client, *kmsg.OffsetCommitRequest, *kmsg.OffsetCommitResponse, error)

// CommitOffsets is kgo's.
func (c *Client) CommitOffsets(ctx context.Context, offsets map[string]map[int32]kgo.EpochOffset, done committed) {
	c.Client.CommitOffsets(ctx, offsets, c.settling(done))
}

// CommitOffsetsSync is kgo's.
func (c *Client) CommitOffsetsSync(ctx context.Context, offsets map[string]map[int32]kgo.EpochOffset, done committed) {
	c.Client.CommitOffsetsSync(ctx, offsets, c.settling(done))
}

// settling returns done, which ends the flight of what was committed first.
func (c *Client) settling(done committed) committed {
	return func(cl *kgo.Client, r *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		c.settleCommitted()
		if done != nil {
			done(cl, r, resp, err)
		}
	}
}

// autoCommitted is called when marked records were committed. Without a callback of the user, it
// logs what failed, as kgo does.
func (c *Client) autoCommitted(cl *kgo.Client, r *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
	c.settleCommitted()
	if done := c.settings.autoCommitted; done != nil {
		done(cl, r, resp, err)
		return
	}
	log, _ := cl.OptValue(kgo.WithLogger).(kgo.Logger)
	failed := func(err error, more ...any) {
		if log != nil && err != nil && !errors.Is(err, context.Canceled) {
			log.Log(kgo.LogLevelError, "franzthrottle: commit failed", append(more, "group", c.settings.group, "err", err)...)
		}
	}
	if failed(err); resp == nil {
		return
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			failed(kerr.ErrorForCode(p.ErrorCode), "topic", t.Topic, "partition", p.Partition)
		}
	}
}

// settleCommitted ends the flight of records that are committed.
func (c *Client) settleCommitted() {
	s := &c.shelf
	if c.lim == nil || s.inFlight.Empty() {
		return
	}
	for name, ids := range c.Client.CommittedOffsets() {
		for id, o := range ids {
			committed := partition{name, id}
			s.inFlight.SettleThrough(o.Offset-1, func(p partition) bool { return p == committed })
		}
	}
}
