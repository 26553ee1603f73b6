package kafkathrottle_test

import (
	"fmt"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestPrefetchIsSizedToTheLimit(t *testing.T) {
	_, brokers := broker(t, 1, "orders")
	for _, test := range []struct {
		p               policy.Policy
		cfg             kafka.ReaderConfig
		queue, maxBytes int
	}{
		{policy.Policy{}, kafka.ReaderConfig{}, 100, 1e6}, // kafka-go's defaults
		{policy.Policy{MessageRate: policy.PerSecond(1000)}, kafka.ReaderConfig{}, 100, 1e6},
		{policy.Policy{MessageRate: policy.PerSecond(100)}, kafka.ReaderConfig{}, 25, 100 << 10},
		{policy.Policy{MessageRate: rate(t, "1/1h")}, kafka.ReaderConfig{}, 1, 16 << 10},
		{policy.Policy{ByteRate: policy.PerSecond(100_000)}, kafka.ReaderConfig{}, 25, 100_000},
		{policy.Policy{MessageRate: policy.PerSecond(100)},
			kafka.ReaderConfig{QueueCapacity: 7, MaxBytes: 5000}, 7, 5000},
		{policy.Policy{MessageRate: policy.PerSecond(1)},
			kafka.ReaderConfig{MinBytes: 50_000, MaxBytes: 80_000}, 1, 50_000},
		{policy.Policy{MessageRate: policy.PerSecond(1), Mode: policy.Shadow}, kafka.ReaderConfig{}, 100, 1e6},
	} {
		t.Run(fmt.Sprintf("%v %v", test.p.MessageRate, test.p.ByteRate), func(t *testing.T) {
			test.cfg.Brokers, test.cfg.Topic = brokers, "orders"
			lim := throttletest.Open(t, test.p)
			r := newReader(t, test.cfg, lim)
			require.Equal(t, int64(test.queue)+1, lim.Stats().Subscriptions[0].ReadAhead)
			require.Equal(t, test.queue, r.Reader.Config().QueueCapacity)
			require.Equal(t, test.maxBytes, r.Reader.Config().MaxBytes)
		})
	}
}
