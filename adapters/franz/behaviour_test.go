package franzthrottle_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestBehaviours(t *testing.T) {
	t.Run("one by one", func(t *testing.T) {
		adaptertest.Run(t, "franz-go", func(testing.TB) adaptertest.Broker { return &fake{most: 1} })
	})
	t.Run("batches", func(t *testing.T) {
		adaptertest.Run(t, "franz-go", func(testing.TB) adaptertest.Broker { return &fake{} },
			// where the records of the last poll may still come:
			"a limit is set and lifted", "a paused topic", "a seek drops the waiting message",
			"a tag has a quota of its own", "close ends a wait")
	})
}

// A fake is an in-process Kafka with Clients.
type fake struct {
	adaptertest.Kafka
	most int // records of a poll; 0 = any number
}

func (f *fake) Open(t testing.TB, lim *throttletest.Limiter, o adaptertest.Options) adaptertest.Consumer {
	opts := []kgo.Opt{kgo.SeedBrokers(f.Brokers...), kgo.ConsumeTopics(o.Topic), kgo.FetchMaxWait(soon)}
	if !o.Alone {
		opts = append(opts, kgo.ConsumerGroup("billing"), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
			kgo.HeartbeatInterval(50*time.Millisecond))
	}
	var more []franzthrottle.Option
	if o.TagOf != nil {
		more = append(more, franzthrottle.WithTagOf(func(r *kgo.Record) string { return o.TagOf(string(r.Value)) }))
	}
	c, err := franzthrottle.New(lim.Limiter, opts, more...)
	require.NoError(t, err)
	return &consumer{Client: c, most: f.most, alone: o.Alone}
}

// A consumer hands out the records of polls one by one.
type consumer struct {
	*franzthrottle.Client
	most  int
	alone bool

	mu     sync.Mutex
	polled []*kgo.Record
}

func (c *consumer) Next(ctx context.Context) (adaptertest.Message, error) {
	for {
		if r := c.first(); r != nil {
			return adaptertest.Message{Value: string(r.Value), Raw: r}, nil
		}
		c.AllowRebalance()
		fetches := c.PollRecords(ctx, c.most)
		if err := fetches.Err(); err != nil {
			return adaptertest.Message{}, err
		}
		c.mu.Lock()
		c.polled = append(c.polled, fetches.Records()...)
		c.mu.Unlock()
	}
}

func (c *consumer) first() (r *kgo.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.polled) > 0 {
		r, c.polled = c.polled[0], c.polled[1:]
	}
	return r
}

func (c *consumer) Settle(ctx context.Context, m adaptertest.Message) error {
	if c.alone {
		return nil
	}
	return c.CommitRecords(ctx, m.Raw.(*kgo.Record))
}

func (c *consumer) Skip(m adaptertest.Message) { c.Client.Skip(m.Raw.(*kgo.Record)) }

func (c *consumer) Rewind(context.Context) error {
	c.SetOffsets(map[string]map[int32]kgo.EpochOffset{"orders": {0: {Epoch: -1}}})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.polled = nil
	return nil
}

func (c *consumer) Close() error {
	c.Client.Close()
	return nil
}
