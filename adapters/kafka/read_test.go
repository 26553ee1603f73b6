package kafkathrottle_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestReadMessageLosesNothing: whatever its deadline, ReadMessage returns each message once and in
// order, with one permit each, and has committed it by then.
func TestReadMessageLosesNothing(t *testing.T) {
	t.Parallel()
	k := services.Kafka(t)
	for _, c := range []struct {
		rate, messages int
		deadline       time.Duration
	}{
		{1, 4, time.Second},
		{1, 4, 990 * time.Millisecond},
		{20, 40, time.Millisecond},
		{20, 40, 45 * time.Millisecond},
		{20, 40, 50 * time.Millisecond},
		{1000, 300, time.Millisecond},
		{1000, 300, 2 * time.Millisecond},
		{1000, 300, 2 * time.Second},
	} {
		t.Run(fmt.Sprintf("%d per second, %v", c.rate, c.deadline), func(t *testing.T) {
			t.Parallel()
			name := services.Name(t)
			k.CreateTopic(name, 1)
			fill(t, k.Brokers, name, 1, c.messages, 100)
			lim := throttletest.Open(t, policy.Policy{
				MessageRate: policy.PerSecond(int64(c.rate)), CaughtUp: policy.CaughtUp{Throttle: new(true)},
			})
			r := newReader(t, groupConfig(k.Brokers, name), lim)
			calls := 0
			for next := 0; next < c.messages; calls++ {
				ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
				m, err := r.ReadMessage(ctx)
				ended := ctx.Err() != nil
				cancel()
				if err == nil {
					require.EqualValues(t, next, m.Offset)
					assert.GreaterOrEqual(t, committed(t, k.Brokers, name), m.Offset+1)
					next++
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.True(t, ended)
				}
				require.Less(t, calls, 100_000)
			}
			t.Logf("%d calls", calls)
			limit := lim.Stats().Subscriptions[0].Limits[0]
			assert.EqualValues(t, c.messages, limit.Granted-limit.Returned)
		})
	}
}

// committed returns the offset that the group of groupConfig has committed for partition 0.
func committed(t *testing.T, brokers []string, topic string) int64 {
	t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
	resp, err := client.OffsetFetch(t.Context(), &kafka.OffsetFetchRequest{
		GroupID: groupConfig(nil, topic).GroupID, Topics: map[string][]int{topic: {0}},
	})
	require.NoError(t, err)
	return resp.Topics[topic][0].CommittedOffset
}

// TestFetchAfterReadMessage: a message that ReadMessage could not return is the next one of
// FetchMessage, and none after Close.
func TestFetchAfterReadMessage(t *testing.T) {
	t.Parallel()
	k := services.Kafka(t)
	name := services.Name(t)
	k.CreateTopic(name, 1)
	fill(t, k.Brokers, name, 1, 1000, 100)
	r := newReader(t, groupConfig(k.Brokers, name), throttletest.Open(t, policy.Policy{}))
	require.EqualValues(t, 0, fetch(t, r).Offset)
	next := int64(1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	failToCommit := func() { // with a context that has ended, kafka-go does one or the other
		for {
			m, err := r.ReadMessage(ended)
			if err == nil {
				require.Equal(t, next, m.Offset)
				next++
			} else if strings.HasPrefix(err.Error(), "committing") {
				return
			}
		}
	}
	failToCommit()
	require.Equal(t, next, fetch(t, r).Offset)
	next++
	failToCommit()
	require.NoError(t, r.Close())
	_, err := r.ReadMessage(t.Context())
	require.ErrorIs(t, err, io.EOF)
}

// TestConfigOfAReader: a Reader that is opened with the Config of another one leaves that alone:
// the message that waits there is returned.
func TestConfigOfAReader(t *testing.T) {
	t.Parallel()
	cluster, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100, 100)
	var joins atomic.Int32
	cluster.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		joins.Add(1)
		return nil, nil, false
	})
	given := groupConfig(brokers, "orders")
	given.HeartbeatInterval = 3 * time.Second // by which it notices the second member
	for name, config := range map[string]func(*kafkathrottle.Reader) kafka.ReaderConfig{
		"Config":            (*kafkathrottle.Reader).Config,
		"kafka-go's Reader": func(r *kafkathrottle.Reader) kafka.ReaderConfig { return r.Reader.Config() },
	} {
		t.Run(name, func(t *testing.T) {
			given.GroupID = "billing-" + name
			slow := policy.Policy{
				MessageRate: policy.Rate{Permits: 1, Period: time.Hour}, CaughtUp: policy.CaughtUp{Throttle: new(true)},
			}
			lim := throttletest.Open(t, slow)
			r := newReader(t, given, lim)
			require.NoError(t, r.CommitMessages(t.Context(), fetch(t, r)))
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := r.FetchMessage(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			before := joins.Load()
			newReader(t, config(r), lim)
			throttletest.Until(t, "the other Reader joins", func() bool { return joins.Load() > before })
			slow.MessageRate = policy.PerSecond(1000)
			lim.Set(slow)
			require.EqualValues(t, 1, fetch(t, r).Offset)
		})
	}
	plain := kafka.NewReader(given)
	defer func() { assert.NoError(t, plain.Close()) }()
	assert.Equal(t, plain.Config(), newReader(t, given, throttletest.Open(t, policy.Policy{})).Config())
}
