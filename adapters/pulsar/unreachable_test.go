package pulsarthrottle_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// unreachable is a client whose broker does not answer.
type unreachable struct {
	pulsar.Client
	asked *atomic.Int32 // for partitions
}

var errUnreachable = errors.New("connection error")

func (c unreachable) TopicPartitions(string) ([]string, error) {
	c.asked.Add(1)
	time.Sleep(30 * time.Second)
	return nil, errUnreachable
}

func (unreachable) Subscribe(pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	time.Sleep(30 * time.Second)
	return nil, errUnreachable
}

func (unreachable) CreateReader(pulsar.ReaderOptions) (pulsar.Reader, error) {
	time.Sleep(30 * time.Second)
	return nil, errUnreachable
}

// TestUnreachable: an open that fails takes at most a second longer than the client's, and no
// longer than that without a limit for which the partitions matter.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		limit policy.Policy
		more  time.Duration
	}{
		{"no limit", policy.Policy{}, 0},
		{"slow", policy.Policy{MessageRate: policy.PerSecond(10)}, 0},
		{"fast", policy.Policy{MessageRate: policy.PerSecond(1000)}, time.Second},
		{"bytes", policy.Policy{ByteRate: policy.PerSecond(1 << 30)}, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: dispatch.Fixed(c.limit)})
				assert.NoError(t, err)
				defer func() { assert.NoError(t, lim.Close()) }()
				for what, open := range map[string]func(pulsar.Client) error{
					"a consumer": func(client pulsar.Client) error {
						_, err := pulsarthrottle.Subscribe(client,
							pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "billing"}, lim)
						return err
					},
					"a consumer of several topics": func(client pulsar.Client) error {
						_, err := pulsarthrottle.Subscribe(client,
							pulsar.ConsumerOptions{Topics: []string{"a", "b", "c"}, SubscriptionName: "billing"}, lim)
						return err
					},
					"a reader": func(client pulsar.Client) error {
						_, err := pulsarthrottle.CreateReader(client, pulsar.ReaderOptions{Topic: "orders"}, lim)
						return err
					},
				} {
					var asked atomic.Int32
					start := time.Now()
					assert.ErrorIs(t, open(unreachable{asked: &asked}), errUnreachable)
					assert.LessOrEqual(t, time.Since(start), 30*time.Second+c.more, what)
					assert.Equal(t, c.more > 0, asked.Load() > 0, what)
				}
			})
		})
	}
}
