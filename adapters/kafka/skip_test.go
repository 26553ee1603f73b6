package kafkathrottle_test

import (
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestSkip: messages that are skipped before they are committed use no permits and no bytes, and
// are not in flight.
func TestSkip(t *testing.T) {
	t.Parallel()
	always := policy.CaughtUp{Throttle: new(true)}
	hour := policy.Rate{Permits: 10, Period: time.Hour}
	for name, p := range map[string]policy.Policy{
		"messages":  {MessageRate: hour, CaughtUp: always},
		"bytes":     {ByteRate: policy.Rate{Permits: 1000, Period: time.Hour}, CaughtUp: always},
		"in flight": {MessageRate: hour, MaxInFlight: new(int64(1)), CaughtUp: always},
		"strict": {
			MessageRate: policy.PerSecond(20), CaughtUp: always,
			Sharing: policy.Sharing{Mode: policy.Strict, PermitExpiry: policy.Duration(time.Minute)},
		},
	} {
		for _, group := range []string{"", "billing"} {
			if group == "" && p.MaxInFlight != nil {
				continue
			}
			t.Run(name+", group "+group, func(t *testing.T) {
				t.Parallel()
				_, brokers := broker(t, 1, "orders")
				fill(t, brokers, "orders", 1, 300, 100)
				lim := throttletest.Open(t, p)
				r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders", GroupID: group}, lim)
				for range 300 {
					m := fetch(t, r)
					r.Skip(m)
					r.Skip(m) // again
					if group != "" {
						require.NoError(t, r.CommitMessages(t.Context(), m))
					}
				}
				limit := lim.Stats().Subscriptions[0].Limits[0]
				if name != "strict" { // where a slot may come too late to be used again
					assert.Zero(t, limit.Granted-limit.Returned)
				}
				assert.Less(t, limit.Granted-limit.Returned, int64(30))
				assert.Zero(t, lim.Stats().Subscriptions[0].InFlight)
			})
		}
	}
	var unlimited *dispatch.Limiter
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 1, 100)
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{Brokers: brokers, Topic: "orders", MaxWait: soon}, unlimited)
	require.NoError(t, err)
	r.Skip(fetch(t, r))
	require.NoError(t, r.Close())
}
