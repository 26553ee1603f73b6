package kafka_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/pairs"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// BenchmarkFranz reads the same records with a kgo.Client and with a Client to which no limit
// applies, or one that is never reached.
func BenchmarkFranz(b *testing.B) {
	high := policy.Policy{ByteRate: policy.PerSecond(1_000_000_000), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
	for name, p := range map[string]policy.Policy{"unlimited/throttle": {}, "unreached/throttle": high} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				benchmarkFranz(b, p)
			}
		})
	}
}

// A poller is a kgo.Client or ours.
type poller interface {
	PollFetches(context.Context) kgo.Fetches
	SetOffsets(map[string]map[int32]kgo.EpochOffset)
}

func benchmarkFranz(b *testing.B, p policy.Policy) {
	const size = 100
	broker, topic := filled(b, size)
	opts := []kgo.Opt{
		kgo.SeedBrokers(broker.Brokers...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
	}
	ours, err := franzthrottle.New(throttletest.Open(b, p).Limiter, opts)
	require.NoError(b, err)
	defer ours.Close()
	bare, err := kgo.NewClient(opts...)
	require.NoError(b, err)
	defer bare.Close()
	pass := func(c poller) pairs.Cost {
		c.SetOffsets(map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1}}})
		require.NoError(b, c.PollFetches(b.Context()).Err()) // returns when the connection is open
		const records = 8 * benchBytes / size / 10           // what the first poll had is not counted
		return pairs.Measure(b, records, func() {
			for n := 0; n < records; {
				fetches := c.PollFetches(b.Context())
				if err := fetches.Err(); err != nil {
					b.Fatal(err)
				}
				n += fetches.NumRecords()
			}
		})
	}
	read := func(c poller) func() pairs.Cost {
		return func() (all pairs.Cost) {
			for range 5 { // one pass takes a tenth of a second
				one := pass(c)
				all.Messages += one.Messages
				all.Wall += one.Wall
				all.CPU += one.CPU
			}
			return all
		}
	}
	pairs.Report(b, 15, read(bare), read(ours))
}
