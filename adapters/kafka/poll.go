package kafkathrottle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/adapters/internal/backlog"
)

// A cluster is asked once a second for the ends of the partitions that Readers of this process
// own, as long as a Reader has a limit. The difference to the Readers' positions is their
// backlog. If the brokers cannot be reached, the backlog is unknown, which counts as behind: the
// limit applies.
//
// A Reader of a group that has seen no partition goes by its group: its backlog is what the group
// has not committed, over all partitions. So a Reader that owns no partition, or only empty ones,
// does not keep its process from having caught up.
type cluster struct {
	key       clusterKey
	client    *kafka.Client
	transport *kafka.Transport
	failed    bool // at the last poll, which was logged
}

// A clusterKey tells clusters apart: Readers with the same brokers and Dialer share one.
type clusterKey struct {
	brokers   string
	dialer    *kafka.Dialer
	isolation kafka.IsolationLevel
}

var clusters backlog.Pollers[clusterKey, *Reader]

// joinCluster has the cluster of r polled for it, until leave.
func joinCluster(r *Reader) (leave func()) {
	brokers := slices.Sorted(slices.Values(r.config.Brokers))
	key := clusterKey{strings.Join(brokers, ","), r.config.Dialer, r.config.IsolationLevel}
	return clusters.Join(key, r, func() backlog.Poller[*Reader] {
		transport := transportOf(r.config.Dialer)
		client := &kafka.Client{Addr: kafka.TCP(r.config.Brokers...), Transport: transport}
		return &cluster{key: key, client: client, transport: transport}
	})
}

// Close closes the connections.
func (c *cluster) Close() { c.transport.CloseIdleConnections() }

// A question is what a poll asks for one topic of one Reader.
type question struct {
	reader  *Reader
	topic   *topic
	places  []place
	changes int // see topic.places
	err     error
}

// Poll asks for the backlogs of readers, and reports them.
func (c *cluster) Poll(ctx context.Context, readers []*Reader) {
	ctx, cancel := context.WithTimeout(ctx, backlog.Timeout)
	defer cancel()
	questions := questionsOf(readers)
	if len(questions) == 0 {
		return
	}
	c.findLeaders(ctx, questions)
	c.findCommitted(ctx, questions)
	all, err := c.findEnds(ctx, questions)
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the last Reader has left
	}
	failed := false
	for _, q := range questions {
		q.err = errors.Join(q.err, err)
		behind := int64(-1)
		if q.err == nil {
			behind, q.err = q.backlog(all)
		}
		if q.err != nil && !c.failed {
			q.reader.logf("kafkathrottle: the backlog of topic %s is unknown,"+
				" so its limit applies: %v", q.topic.name, q.err)
		}
		failed = failed || q.err != nil
		q.topic.conclude(behind, q.changes)
	}
	c.failed = failed
}

// questionsOf returns a question for each topic that has a limit.
func questionsOf(readers []*Reader) (questions []*question) {
	for _, r := range readers {
		receiving := r.receiver.Receiving()
		for _, t := range r.topics {
			if len(t.sub.Stats().Limits) > 0 || r.tagOf != nil && t.sub.TagsLimited() {
				q := &question{reader: r, topic: t}
				q.places, q.changes = t.places(r, receiving)
				questions = append(questions, q)
			}
		}
	}
	return questions
}

// findCommitted finds the places of Readers that have seen no partition: those of their groups.
func (c *cluster) findCommitted(ctx context.Context, questions []*question) {
	type answer struct {
		places []place
		err    error
	}
	known := map[[2]string]answer{}
	for _, q := range questions {
		if len(q.places) > 0 {
			continue
		}
		key := [2]string{q.reader.config.GroupID, q.topic.name}
		a, ok := known[key]
		if !ok {
			a.places, a.err = c.committed(ctx, key[0], key[1])
			known[key] = a
		}
		q.err = a.err
		for _, at := range a.places {
			if at.next < 0 { // never committed: where kafka-go would begin
				at.next = kafka.FirstOffset
				if q.reader.config.StartOffset == kafka.LastOffset {
					at.next = kafka.LastOffset
				}
			}
			q.places = append(q.places, at)
		}
	}
}

// committed returns the offsets that a group has committed in all partitions of a topic; -1 = none.
func (c *cluster) committed(ctx context.Context, group, topic string) (places []place, err error) {
	partitions, err := c.partitions(ctx, topic)
	if err != nil {
		return nil, err
	}
	offsets, err := c.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: partitions},
	})
	if err == nil {
		err = offsets.Error
	}
	if err != nil {
		return nil, err
	}
	for _, o := range offsets.Topics[topic] {
		if o.Error != nil {
			return nil, o.Error
		}
		places = append(places, place{o.Partition, o.CommittedOffset})
	}
	if missing := len(partitions) - len(places); missing != 0 {
		return nil, fmt.Errorf("topic %s: the committed offsets of %d of %d partitions are missing",
			topic, missing, len(partitions))
	}
	return places, nil
}

// partitions returns the partitions of a topic.
func (c *cluster) partitions(ctx context.Context, topic string) (partitions []int, err error) {
	meta, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	for _, t := range meta.Topics {
		if t.Name != topic {
			continue
		}
		if t.Error != nil {
			return nil, t.Error
		}
		for _, p := range t.Partitions {
			partitions = append(partitions, p.ID)
		}
	}
	if len(partitions) == 0 {
		return nil, kafka.UnknownTopicOrPartition
	}
	return partitions, nil
}

// ends are the first and last offsets of partitions.
type ends map[partition]kafka.PartitionOffsets

// findEnds returns the ends of all partitions in question, and the beginnings of those that have
// messages behind their place: retention may have deleted messages that a group has not read.
func (c *cluster) findEnds(ctx context.Context, questions []*question) (ends, error) {
	all := map[partition]bool{}
	for _, q := range questions {
		for _, at := range q.places {
			all[partition{q.topic.name, at.partition}] = true
		}
	}
	found, err := c.findOffsets(ctx, all, kafka.LastOffsetOf)
	if err != nil {
		return nil, err
	}
	behind := map[partition]bool{}
	for _, q := range questions {
		for _, at := range q.places {
			if p := (partition{q.topic.name, at.partition}); at.next != kafka.LastOffset && at.next < found[p].LastOffset {
				behind[p] = true
			}
		}
	}
	first, err := c.findOffsets(ctx, behind, kafka.FirstOffsetOf)
	for p, o := range first {
		end := found[p]
		end.FirstOffset, end.Error = o.FirstOffset, errors.Join(end.Error, o.Error)
		found[p] = end
	}
	return found, err
}

// findOffsets asks for one offset of each partition; kafka-go sends a request for each.
func (c *cluster) findOffsets(
	ctx context.Context, parts map[partition]bool, offset func(partition int) kafka.OffsetRequest,
) (ends, error) {
	found := ends{}
	if len(parts) == 0 {
		return found, nil
	}
	requests := map[string][]kafka.OffsetRequest{}
	for p := range parts {
		requests[p.topic] = append(requests[p.topic], offset(p.id))
	}
	response, err := c.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: requests, IsolationLevel: c.key.isolation,
	})
	if err != nil {
		return nil, err
	}
	for topic, partitions := range response.Topics {
		for _, o := range partitions {
			found[partition{topic, o.Partition}] = o
		}
	}
	return found, nil
}

// backlog returns the number of messages behind the places.
func (q *question) backlog(all ends) (sum int64, err error) {
	for _, at := range q.places {
		o, ok := all[partition{q.topic.name, at.partition}]
		if !ok || o.Error != nil {
			err = errors.Join(o.Error, kafka.UnknownTopicOrPartition)
			return -1, fmt.Errorf("partition %d: %w", at.partition, err)
		}
		if at.next != kafka.LastOffset { // kafka.FirstOffset is below every offset
			sum += max(0, o.LastOffset-max(at.next, o.FirstOffset))
		}
	}
	return sum, nil
}

// logf writes to the log of the kafka.Reader.
func (r *Reader) logf(format string, args ...any) {
	if r.config.ErrorLogger != nil {
		r.config.ErrorLogger.Printf(format, args...)
	} else if r.config.Logger != nil {
		r.config.Logger.Printf(format, args...)
	}
}

// transportOf returns a transport that connects as d does.
func transportOf(d *kafka.Dialer) *kafka.Transport {
	dial := d.DialFunc
	if dial == nil {
		dial = (&net.Dialer{
			Timeout: d.Timeout, LocalAddr: d.LocalAddr,
			FallbackDelay: d.FallbackDelay, KeepAlive: d.KeepAlive,
		}).DialContext
	}
	if d.Resolver != nil {
		direct := dial
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			hosts, err := d.Resolver.LookupHost(ctx, host)
			if err != nil {
				return nil, err
			}
			if len(hosts) > 0 {
				host = hosts[0]
			}
			return direct(ctx, network, net.JoinHostPort(host, port))
		}
	}
	return &kafka.Transport{
		Dial: dial, DialTimeout: d.Timeout, ClientID: d.ClientID, TLS: d.TLS, SASL: d.SASLMechanism,
	}
}
