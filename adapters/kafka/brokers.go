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

// brokers are those that lead a topic's partitions, while a throughput quota applies to it: what is read of a partition is a cost of
// its broker. A broker's name is kafka/HOST:PORT, its zone its rack, or its name if it has none.
type brokers struct {
	byPartition atomic.Pointer[[]*dispatch.Backend]

	// The poller's own:
	asked  time.Time
	failed bool // the last time, which was said
}

// leadersValid is how long the leaders of partitions are thought to stay what they are.
const leadersValid = 30 * time.Second

// broker is the one that leads a partition, nil while that is not known or of no account.
func (t *topic) broker(partition int) *dispatch.Backend {
	if leaders := t.brokers.byPartition.Load(); leaders != nil && partition < len(*leaders) {
		return (*leaders)[partition]
	}
	return nil
}

// askLeaders finds the brokers of topics to which quotas apply. It tries again with the next poll if it fails.
func (p *poller) askLeaders(ctx context.Context, questions []*question) {
	for _, q := range questions {
		t := q.topic
		if !q.reader.metered(t) || time.Since(t.brokers.asked) < leadersValid {
			continue
		}
		meta, err := p.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{t.name}})
		if err != nil {
			if !t.brokers.failed {
				q.reader.logf("kafkathrottle: the brokers of %s are not known, so that what it costs them does not count: %v", t.name, err)
			}
			t.brokers.failed = true
			continue
		}
		t.brokers.failed = false
		leaders := []*dispatch.Backend{}
		for _, of := range meta.Topics {
			for _, partition := range of.Partitions {
				for partition.ID >= len(leaders) && of.Name == t.name {
					leaders = append(leaders, nil)
				}
				if partition.Leader.Host == "" {
					continue // it has none now
				}
				host := net.JoinHostPort(partition.Leader.Host, strconv.Itoa(partition.Leader.Port))
				b, err := q.reader.lim.Backend("kafka/"+host, cmp.Or(partition.Leader.Rack, "kafka/"+host))
				if err == nil && partition.ID < len(leaders) { // else the Limiter is closed
					leaders[partition.ID] = b
				}
			}
		}
		t.brokers.byPartition.Store(&leaders)
		if len(leaders) > 0 && !slices.Contains(leaders, nil) { // else they are asked for again
			t.brokers.asked = time.Now()
		}
	}
}

// metered says that what messages of a topic cost is counted.
func (r *Reader) metered(t *topic) bool {
	return t.sub.Metered() || r.tagOf != nil && t.sub.TagsLimited()
}
