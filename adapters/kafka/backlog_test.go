package kafkathrottle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
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
	const n = 300
	start := time.Now()
	for i := range n {
		fetch(t, r)
		require.False(t, subscription(t, lim).Exempt, "after %d messages", i)
	}
	require.Greater(t, time.Since(start), 2750*time.Millisecond, "300/100 s, less 250 ms")
	throttletest.Until(t, "the backlog is known", func() bool { return subscription(t, lim).Backlog == 100_000-n-1 })
	require.Equal(t, 1_000_000, r.Reader.Config().MaxBytes)
}

// charged returns the permits that the only subscription was charged.
func charged(t testing.TB, lim *throttletest.Limiter) (n int64) {
	t.Helper()
	for _, l := range subscription(t, lim).Limits {
		n += l.Granted - l.Returned
	}
	return n
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
			throttletest.Until(t, "messages of a subscription that has caught up are not charged", func() bool {
				throttletest.Until(t, "the subscription has caught up", func() bool { return subscription(t, lim).Exempt })
				before := charged(t, lim)
				fill(t, brokers, "orders", 1, 90, 10) // no more than the threshold
				for range 90 {
					fetch(t, r)
				}
				return charged(t, lim) == before // unless the backlog was unknown for a while
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
	throttletest.Until(t, "the subscription has caught up", func() bool { return subscription(t, lim).Exempt })
	fill(t, brokers, "orders", 4, 1000, 10)
	throttletest.Until(t, "the subscription is behind", func() bool { return !subscription(t, lim).Exempt })
}

func TestReaderAtTheEndIsCaughtUp(t *testing.T) {
	t.Parallel()
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 1000, 10)
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(100)})
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim)
	throttletest.Until(t, "the backlog is known", func() bool { return subscription(t, lim).Backlog == 1000 })
	require.NoError(t, r.SetOffset(kafka.LastOffset))
	throttletest.Until(t, "the subscription has caught up", func() bool { return subscription(t, lim).Exempt })
	require.NoError(t, r.SetOffset(400))
	throttletest.Until(t, "the backlog is 600", func() bool { return subscription(t, lim).Backlog == 600 })
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
	start := time.Now()
	lim.Set(policy.Policy{MessageRate: policy.PerSecond(100)})
	for n := range 6 { // the end and the beginning of one partition, once a second
		<-asked
		require.Greater(t, time.Since(start), time.Duration(n/2-1)*time.Second)
	}
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
	throttletest.Until(t, "the subscription has caught up", func() bool { return subscription(t, lim).Exempt })
	fail := func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, fmt.Errorf("the broker is unavailable"), true // cuts the connection
	}
	reports := func() int { return strings.Count(log.String(), "the backlog of topic orders is unknown") }
	before := reports() // a slow broker may have been reported, too
	c.ControlKey(int16(kmsg.ListOffsets), fail)
	throttletest.Until(t, "the subscription is behind", func() bool { return !subscription(t, lim).Exempt })
	require.EqualValues(t, -1, subscription(t, lim).Backlog)
	time.Sleep(2 * time.Second)
	require.Equal(t, 1, reports()-before, log.String())
}

// TestDeletedMessagesAreNoBacklog: what retention has deleted is no backlog, whether a group had
// committed before it, or a Reader waits there.
func TestDeletedMessagesAreNoBacklog(t *testing.T) {
	t.Parallel()
	const partitions = 2
	k := services.Kafka(t)
	_, fake := broker(t, partitions, "orders")
	topic := services.Name(t)
	k.CreateTopic(topic, partitions)
	for name, c := range map[string]struct {
		brokers []string
		topic   string
	}{"in process": {fake, "orders"}, "a real broker": {k.Brokers, topic}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fill(t, c.brokers, c.topic, partitions, 1000, 10)
			lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(10_000)})
			cfg := groupConfig(c.brokers, c.topic)
			first := newReader(t, cfg, lim)
			for range 500 { // some of each partition
				require.NoError(t, first.CommitMessages(t.Context(), fetch(t, first)))
			}
			require.NoError(t, first.Close())
			deleteRecords(t, c.brokers, c.topic, partitions, 1000)
			r := newReader(t, cfg, lim) // it goes by its group
			throttletest.Until(t, "the subscription has caught up", func() bool { return subscription(t, lim).Exempt })
			require.Zero(t, subscription(t, lim).Backlog)

			fill(t, c.brokers, c.topic, 1, 1, 10)
			fetch(t, r) // it goes by its position
			lim.Set(policy.Policy{MessageRate: policy.PerSecond(1)})
			fill(t, c.brokers, c.topic, 1, 300, 10)
			throttletest.Until(t, "the subscription is behind", func() bool { return subscription(t, lim).Backlog == 300 })
			deleteRecords(t, c.brokers, c.topic, 1, 1291)
			throttletest.Until(t, "ten are left", func() bool { return subscription(t, lim).Backlog == 10 })
		})
	}
}

// deleteRecords deletes the messages before an offset in each partition of a topic.
func deleteRecords(t *testing.T, brokers []string, topic string, partitions int, before int64) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	require.NoError(t, err)
	defer client.Close()
	request := kmsg.NewPtrDeleteRecordsRequest()
	request.TimeoutMillis = 10_000
	records := kmsg.NewDeleteRecordsRequestTopic()
	records.Topic = topic
	for p := range partitions {
		records.Partitions = append(records.Partitions, kmsg.DeleteRecordsRequestTopicPartition{Partition: int32(p), Offset: before})
	}
	request.Topics = append(request.Topics, records)
	response, err := request.RequestWith(t.Context(), client)
	require.NoError(t, err)
	for _, p := range response.Topics[0].Partitions {
		require.NoError(t, kerr.ErrorForCode(p.ErrorCode))
	}
}
