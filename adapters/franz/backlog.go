package franzthrottle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/dispatchthrottle/throttle/adapters/internal/backlog"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A poller asks the brokers once a second, as long as a limit applies, for the ends of the
// partitions that a Client reads. The difference to its positions is its backlog. If they cannot be
// reached, the backlog is unknown, which counts as behind: the limit applies.
type poller struct {
	client *Client
	failed bool // at the last poll, which was logged
}

var pollers backlog.Pollers[*Client, *Client]

func joinPollers(c *Client) (leave func()) {
	return pollers.Join(c, c, func() backlog.Poller[*Client] { return &poller{client: c} })
}

// Close implements backlog.Poller.
func (p *poller) Close() {}

const (
	endOffset   = -1
	startOffset = -2
)

// A question is what a poll asks for a topic.
type question struct {
	topic   *topic
	ids     []int32             // partitions
	others  func(id int32) bool // which others; nil = none
	idle    bool                // the Client waits for records, and keeps none of the topic
	changes int
}

// Poll implements backlog.Poller.
func (p *poller) Poll(ctx context.Context, _ []*Client) {
	ctx, cancel := context.WithTimeout(ctx, backlog.Timeout)
	defer cancel()
	c := p.client
	failed := false
	for _, q := range c.questions() {
		behind, err := c.behind(ctx, q)
		if errors.Is(ctx.Err(), context.Canceled) {
			return // the Client is closed
		}
		if err != nil {
			if behind = -1; !p.failed {
				slog.Warn("franzthrottle: the backlog is unknown, so the limit applies", "topic", q.topic.name, "error", err)
			}
			failed = true
		}
		c.shelf.report(q, behind)
	}
	p.failed = failed
}

// questions returns one for each topic that has a limit.
func (c *Client) questions() (all []question) {
	s := &c.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	committed := c.Client.CommittedOffsets() // with all partitions of positions that the group owns
	for _, t := range s.order {
		if t.err != nil || len(t.sub.Stats().Limits) == 0 && (c.options.tagOf == nil || !t.sub.TagsLimited()) {
			continue
		}
		q := question{topic: t, idle: s.waiting != nil && t.count == 0}
		switch {
		case c.settings.direct != nil:
			q.ids, q.others = c.settings.direct.of(t.name)
		case c.settings.group == "":
			if slices.Contains(c.Client.GetConsumeTopics(), t.name) { // else it was purged
				q.others = func(int32) bool { return true }
			}
		default:
			for id := range t.owned {
				if _, found := committed[t.name][id]; !found && t.positions[id] != nil {
					delete(t.owned, id) // a session tells of the first loss in a transaction
					t.changes++
					continue
				}
				q.ids = append(q.ids, id)
			}
		}
		if len(q.ids) == 0 && q.others == nil {
			t.report(0)
			continue
		}
		q.changes = t.changes
		all = append(all, q)
	}
	return all
}

// report reports the backlog of a poll, unless something has changed since.
func (s *shelf) report(q question, behind int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.changes == q.topic.changes {
		q.topic.report(behind)
	}
}

// report tells the subscription a backlog, -1 = unknown, and how many records are kept. The caller
// holds the shelf's mu.
func (t *topic) report(behind int64) {
	t.reported = behind
	t.sub.ReportBacklog(behind)
	t.sub.ReportReadAhead(int64(t.count))
}

// noticeMargin is how many records more than the reported backlog a fetch must have seen, for the
// backlog to be reported at once.
const noticeMargin = 100

// noticeBacklog reports what a fetch tells of the backlog. Its ends are as old as the fetch: they
// never show that the Client has caught up, but they show that the backlog has grown. The caller
// holds the shelf's mu.
func (t *topic) noticeBacklog(ft *kgo.FetchTopic, committed bool) {
	if t.reported < 0 {
		return
	}
	behind := int64(t.count)
	for i := range ft.Partitions {
		p := &ft.Partitions[i]
		if len(p.Records) == 0 {
			continue
		}
		end := p.HighWatermark
		if committed {
			end = p.LastStableOffset
		}
		behind += end - p.Records[0].Offset
	}
	if behind > t.reported+noticeMargin {
		t.changes++ // a poll that is on its way may not know of them
		t.report(behind)
	}
}

// behind returns the backlog of a topic's partitions.
func (c *Client) behind(ctx context.Context, q question) (sum int64, err error) {
	meta, err := c.metadata(ctx, q.topic)
	if err != nil {
		return 0, err
	}
	ids := q.ids
	for _, p := range meta.Partitions {
		if q.others != nil && q.others(p.Partition) {
			ids = append(ids, p.Partition)
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	ends, err := c.listOffsets(ctx, q.topic.name, ids, endOffset)
	if err != nil {
		return 0, err
	}
	starts, err := c.listOffsets(ctx, q.topic.name, ids, startOffset)
	if err != nil {
		return 0, err
	}
	committed := c.Client.CommittedOffsets()[q.topic.name]
	s := &c.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		at := q.topic.positions[id]
		if at == nil {
			first, found := c.first(partition{q.topic.name, id}, committed, ends[id])
			if !found {
				return -1, nil // it begins at a time, for example
			}
			at = &position{from: max(first, starts[id]), next: -1, epoch: -1}
			if c.settings.group == "" && at.from == ends[id] {
				q.topic.positions[id] = at // its end, as it was when it was first seen
			}
		}
		sum += min(at.behind(ends[id], q.idle), max(0, ends[id]-starts[id]))
	}
	return sum, nil
}

// first returns the offset of the first record that will be read of a partition of which none has
// been; found is false if that cannot be known.
func (c *Client) first(p partition, committed map[int32]kgo.EpochOffset, end int64) (offset int64, found bool) {
	if o, found := committed[p.id]; found && o.Offset >= 0 {
		return o.Offset, true
	}
	start := c.settings.start
	if d := c.settings.direct; d != nil {
		if own, found := d.start(p); found {
			start = own
		}
	}
	at := start.EpochOffset().Offset
	switch start.WithEpoch(-1) {
	case kgo.NewOffset().AtStart():
		return 0, true
	case kgo.NewOffset().AtEnd():
		return end, true
	case kgo.NewOffset().At(at):
		return at, true
	}
	return 0, false
}

// listOffsets asks for an offset of each partition: its end, as far as the Client reads, or its
// start.
func (c *Client) listOffsets(ctx context.Context, topic string, ids []int32, which int64) (map[int32]int64, error) {
	r, rt := kmsg.NewPtrListOffsetsRequest(), kmsg.NewListOffsetsRequestTopic()
	r.ReplicaID = -1
	if c.settings.committed {
		r.IsolationLevel = 1
	}
	rt.Topic = topic
	for _, id := range ids {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = id, which, -1
		rt.Partitions = append(rt.Partitions, p)
	}
	r.Topics = append(r.Topics, rt)
	found := map[int32]int64{}
	for _, shard := range c.Client.RequestSharded(ctx, r) {
		if shard.Err != nil {
			return nil, shard.Err
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("partition %d: %w", p.Partition, err)
				}
				found[p.Partition] = p.Offset
			}
		}
	}
	if len(found) != len(ids) {
		return nil, fmt.Errorf("the offsets of %d of %d partitions are missing", len(ids)-len(found), len(ids))
	}
	return found, nil
}

// leaders are the brokers that lead a topic's partitions, while a throughput quota applies to the
// topic: reading from a partition costs its leader. As a backend, a broker is named
// kafka/HOST:PORT; its zone is its rack, or its name if it has none.
type leaders struct {
	byPartition atomic.Pointer[[]*dispatch.Backend] // nil elements are unknown
}

// known reports whether a quota has applied to the topic, so that reading it may cost a leader.
func (l *leaders) known() bool { return l.byPartition.Load() != nil }

// backend returns the leader of a partition, or nil if it is unknown.
func (l *leaders) backend(id int32) *dispatch.Backend {
	if all := l.byPartition.Load(); all != nil && int(id) < len(*all) {
		return (*all)[id]
	}
	return nil
}

// leadersValid is how long leaders are used before they are asked for again.
const leadersValid = 30 * time.Second

// metadata returns what the brokers say of a topic, and notes its leaders if a quota applies to it.
func (c *Client) metadata(ctx context.Context, t *topic) (found kmsg.MetadataResponseTopic, err error) {
	r, rt := kmsg.NewPtrMetadataRequest(), kmsg.NewMetadataRequestTopic()
	rt.Topic = new(t.name)
	r.Topics = append(r.Topics, rt)
	meta, err := c.Client.RequestCachedMetadata(ctx, r, leadersValid)
	if err != nil {
		return found, err
	}
	for _, found = range meta.Topics {
		if found.Topic != nil && *found.Topic == t.name {
			if t.sub.Metered() || c.options.tagOf != nil && t.sub.TagsLimited() {
				t.leaders.note(c.lim, meta.Brokers, found.Partitions)
			}
			return found, kerr.ErrorForCode(found.ErrorCode)
		}
	}
	return found, kerr.UnknownTopicOrPartition
}

func (l *leaders) note(
	lim *dispatch.Limiter, brokers []kmsg.MetadataResponseBroker, partitions []kmsg.MetadataResponseTopicPartition,
) {
	var all []*dispatch.Backend
	for _, p := range partitions {
		for len(all) <= int(p.Partition) {
			all = append(all, nil)
		}
		for _, b := range brokers {
			if b.NodeID != p.Leader {
				continue
			}
			name := "kafka/" + net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
			zone := name
			if b.Rack != nil {
				zone = cmp.Or(*b.Rack, name)
			}
			if backend, err := lim.Backend(name, zone); err == nil { // otherwise the Limiter is closed
				all[p.Partition] = backend
			}
		}
	}
	l.byPartition.Store(&all)
}
