package kafkathrottle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// subscription returns the statistics of the only subscription.
func subscription(t testing.TB, lim *throttletest.Limiter) dispatch.SubscriptionStats {
	t.Helper()
	s := lim.Stats().Subscriptions
	require.Len(t, s, 1)
	return s[0]
}

// A fetch of 1 MB is 90 s old when its last message is returned, and its high-water mark shows no
// backlog. The limit must still apply.
func TestABacklogIsNeverExempt(t *testing.T) {
	t.Parallel()
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100_000, 100)
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(100)})
	cfg := kafka.ReaderConfig{Brokers: brokers, Topic: "orders", MaxBytes: 1e6, MaxWait: soon}
	r, err := kafkathrottle.Wrap(kafka.NewReader(cfg), lim.Limiter)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	fetch(t, r)
	n := 0
	loosely.Hold(t, func(loose assert.TestingT) {
		start, before := time.Now(), n
		for ; time.Since(start) < 4*time.Second; n++ {
			fetch(t, r)
			require.False(t, subscription(t, lim).Exempt, "after %d messages", n)
		}
		require.LessOrEqual(t, float64(n-before), 100*(time.Since(start).Seconds()+0.25)+1)
		assert.GreaterOrEqual(loose, n-before, 400*90/100)
		assert.InDelta(loose, 100_000-n, subscription(t, lim).Backlog, 200)
	})
	require.Equal(t, 1_000_000, r.Config().MaxBytes)
}

func TestCaughtUpIsExemptUntilItIsBehindAgain(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"", "billing"} {
		t.Run("group="+group, func(t *testing.T) {
			t.Parallel()
			_, brokers := broker(t, 2, "orders")
			fill(t, brokers, "orders", 2, 200, 10)
			lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(200)})
			r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders", GroupID: group}, lim)
			total := 400
			if group == "" {
				total = 200 // partition 0
			}
			for range total {
				_, err := r.ReadMessage(t.Context())
				require.NoError(t, err)
			}
			require.Eventually(t, func() bool { return subscription(t, lim).Exempt }, 4*time.Second,
				10*time.Millisecond)

			loosely.Hold(t, func(loose assert.TestingT) {
				start := time.Now()
				fill(t, brokers, "orders", 1, 90, 10) // no more than the threshold
				for range 90 {
					fetch(t, r)
				}
				assert.Less(loose, time.Since(start), 300*time.Millisecond, "they would take 450 ms")
				require.True(t, subscription(t, lim).Exempt)
			})

			fill(t, brokers, "orders", 1, 5000, 10)
			start := time.Now()
			for range 600 {
				fetch(t, r)
			}
			require.False(t, subscription(t, lim).Exempt)
			require.Greater(t, time.Since(start), 1500*time.Millisecond, "only the first fetch of a burst is exempt")
		})
	}
}

// Readers that own no partition, or only empty ones, do not keep their replica from catching up.
func TestReadersWithoutMessagesCatchUp(t *testing.T) {
	t.Parallel()
	_, brokers := broker(t, 4, "orders")
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(100)})
	cfg := kafka.ReaderConfig{Brokers: brokers, Topic: "orders", GroupID: "billing"}
	for range 6 {
		newReader(t, cfg, lim)
	}
	require.Eventually(t, func() bool { return subscription(t, lim).Exempt }, 5*time.Second, 10*time.Millisecond)
	fill(t, brokers, "orders", 4, 1000, 10)
	require.Eventually(t, func() bool { return !subscription(t, lim).Exempt }, 5*time.Second, 10*time.Millisecond)
}

func TestReaderAtTheEndIsCaughtUp(t *testing.T) {
	t.Parallel()
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 1000, 10)
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(100)})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	require.Eventually(t, func() bool { return subscription(t, lim).Backlog == 1000 },
		5*time.Second, 10*time.Millisecond)
	require.NoError(t, r.SetOffset(kafka.LastOffset))
	require.Eventually(t, func() bool { return subscription(t, lim).Exempt }, 5*time.Second, 10*time.Millisecond)
	require.NoError(t, r.SetOffset(400))
	require.Eventually(t, func() bool { return subscription(t, lim).Backlog == 600 }, 5*time.Second,
		10*time.Millisecond)
}

// One poller asks for all Readers, and asks nothing while nothing is limited.
func TestOnePollerPerProcess(t *testing.T) {
	t.Parallel()
	c, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 10, 10)
	asked := make(chan struct{}, 1000)
	c.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked <- struct{}{}
		return nil, nil, false
	})
	lim := throttletest.Open(t, policy.Policy{})
	for range 4 {
		newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	}
	time.Sleep(1500 * time.Millisecond)
	require.Empty(t, asked)
	lim.Set(policy.Policy{MessageRate: policy.PerSecond(100)})
	require.Eventually(t, func() bool { return len(asked) > 0 }, 3*time.Second, 10*time.Millisecond)
	loosely.Hold(t, func(loose assert.TestingT) {
		before := len(asked)
		time.Sleep(3 * time.Second)
		assert.InDelta(loose, 3*2, len(asked)-before, 2, "the end and the beginning of one partition, once a second")
	})
}

func TestAnUnknownBacklogIsReportedAndLoggedOnce(t *testing.T) {
	t.Parallel()
	c, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 10, 10)
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(100)})
	var log logger
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders", ErrorLogger: &log}, lim)
	for range 10 {
		fetch(t, r)
	}
	require.Eventually(t, func() bool { return subscription(t, lim).Exempt }, 4*time.Second, 10*time.Millisecond)
	fail := func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, fmt.Errorf("the broker is unavailable"), true // cuts the connection
	}
	c.ControlKey(int16(kmsg.ListOffsets), fail)
	require.Eventually(t, func() bool { return !subscription(t, lim).Exempt }, 5*time.Second, 10*time.Millisecond)
	require.EqualValues(t, -1, subscription(t, lim).Backlog)
	time.Sleep(2 * time.Second)
	require.Equal(t, 1, strings.Count(log.String(), "the backlog of topic orders is unknown"), log.String())
}
