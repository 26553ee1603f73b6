package demo

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// franzGroup is the consumer group that reads with franz-go, with --clients.
const franzGroup = "alerts"

// franzConsumer opens a franz-go client of a group.
func (b *kafkaBroker) franzConsumer(group string, lim *dispatch.Limiter) (consumer, error) {
	c, err := franzthrottle.New(lim, []kgo.Opt{
		kgo.SeedBrokers(b.addrs...), kgo.ConsumerGroup(b.groupID(group)), kgo.ConsumeTopics(b.topic),
		kgo.AutoCommitMarks(), kgo.AutoCommitInterval(commitEvery),
		kgo.Balancers(kgo.RangeBalancer()), kgo.FetchMaxWait(250 * time.Millisecond),
		kgo.HeartbeatInterval(200 * time.Millisecond), kgo.SessionTimeout(6 * time.Second),
	}, franzthrottle.WithSubscription(group))
	if err != nil {
		return nil, err
	}
	return &franzConsumer{Client: c}, nil
}

// A franzConsumer hands out the records of polls one by one.
type franzConsumer struct {
	*franzthrottle.Client
	polled []*kgo.Record
}

func (c *franzConsumer) next(ctx context.Context) (lane int, offset int64, err error) {
	for len(c.polled) == 0 {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return 0, 0, err
		}
		c.polled = fetches.Records()
	}
	r := c.polled[0]
	c.polled = c.polled[1:]
	c.MarkCommitRecords(r)
	return int(r.Partition), r.Offset, nil
}

// Close leaves the group.
func (c *franzConsumer) Close() error {
	c.Client.Close()
	return nil
}
