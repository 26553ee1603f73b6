package kafkathrottle

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// leaders are the brokers that lead a topic's partitions, while a throughput quota applies to the
// topic: reading from a partition costs its leader. As a backend, a broker is named
// kafka/HOST:PORT; its zone is its rack, or its name if it has none.
type leaders struct {
	byPartition atomic.Pointer[[]*dispatch.Backend] // nil elements are unknown

	// Used by the poller only:
	asked  time.Time // when all were known last
	failed bool      // at the last attempt, which was logged
}

// leadersValid is how long leaders are used before they are asked for again.
const leadersValid = 30 * time.Second

// known reports whether a quota has applied to the topic, so that reading it may cost a leader.
func (l *leaders) known() bool { return l.byPartition.Load() != nil }

// backend returns the leader of a partition, or nil if it is unknown.
func (l *leaders) backend(partition int) *dispatch.Backend {
	if all := l.byPartition.Load(); all != nil && partition < len(*all) {
		return (*all)[partition]
	}
	return nil
}

// metered reports whether a quota applies to messages of a topic.
func (r *Reader) metered(t *topic) bool {
	return t.sub.Metered() || r.tagOf != nil && t.sub.TagsLimited()
}

// findLeaders finds the leaders of topics to which quotas apply. The next poll tries again what
// fails in this one.
func (c *cluster) findLeaders(ctx context.Context, questions []*question) {
	for _, q := range questions {
		l := &q.topic.leaders
		if !q.reader.metered(q.topic) || time.Since(l.asked) < leadersValid {
			continue
		}
		meta, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{q.topic.name}})
		if err != nil {
			if !l.failed {
				q.reader.logf("kafkathrottle: the leaders of topic %s are unknown,"+
					" so its throughput quota counts no cost: %v", q.topic.name, err)
			}
			l.failed = true
			continue
		}
		l.failed = false
		all := backends(q.reader.lim, q.topic.name, meta)
		l.byPartition.Store(&all)
		if len(all) > 0 && !slices.Contains(all, nil) { // otherwise the next poll asks again
			l.asked = time.Now()
		}
	}
}

// backends returns the leaders of a topic's partitions.
func backends(
	lim *dispatch.Limiter, topic string, meta *kafka.MetadataResponse,
) (all []*dispatch.Backend) {
	for _, t := range meta.Topics {
		if t.Name != topic {
			continue
		}
		for _, p := range t.Partitions {
			for len(all) <= p.ID {
				all = append(all, nil)
			}
			if p.Leader.Host == "" {
				continue // the partition has no leader now
			}
			name := "kafka/" + net.JoinHostPort(p.Leader.Host, strconv.Itoa(p.Leader.Port))
			b, err := lim.Backend(name, cmp.Or(p.Leader.Rack, name))
			if err == nil { // otherwise the Limiter is closed
				all[p.ID] = b
			}
		}
	}
	return all
}
