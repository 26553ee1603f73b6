package kafkathrottle_test

import (
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A limitedReader reads 100-byte messages at 500 a second.
type limitedReader struct {
	*kafkathrottle.Reader
	t testing.TB
}

func newLimitedReader(t testing.TB, p policy.Policy) limitedReader {
	t.Helper()
	_, brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 4000, 100)
	p.CaughtUp.Throttle = new(true)
	r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, throttletest.Open(t, p))
	fetch(t, r)
	return limitedReader{r, t}
}

// next reads n messages in order, and returns how long that took.
func (r limitedReader) next(n int) time.Duration {
	r.t.Helper()
	start, offset := time.Now(), r.Offset()
	for i := range n {
		require.Equal(r.t, offset+int64(i), fetch(r.t, r.Reader).Offset)
	}
	require.Equal(r.t, offset+int64(n), r.Offset())
	return time.Since(start)
}

// limits are those of a limitedReader.
var limits = map[string]policy.Policy{
	"messages":    {MessageRate: policy.PerSecond(500)},
	"exact bytes": {ByteRate: policy.PerSecond(50_000)},
}

func TestAccuracyReader(t *testing.T) {
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			accuracy.Measure(t, func(m *accuracy.M) {
				const n, rate = 1000, 500
				used := 100 * n / newLimitedReader(t, limit).next(n).Seconds() / rate
				m.Within("used from the second message on, %", used, 90, 114)
			})
		})
	}
}

// TestAccuracyQuotaOfATag: a third of the messages have a tag with a quota of 20/s.
func TestAccuracyQuotaOfATag(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		_, brokers := broker(t, 1, "orders")
		fill(t, brokers, "orders", 1, 250, 10)
		lim := throttletest.Open(t, policy.Policy{})
		lim.Add("tag:bulk", throttletest.Quota(20))
		r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim, kafkathrottle.WithTagOf(tagOf))
		fetch(t, r)
		start := time.Now()
		for range 60 {
			fetch(t, r)
		}
		m.Within("used, %", 100*20/time.Since(start).Seconds()/20, 75, 140)
	})
}

// TestAccuracyCostOfReading: messages have two pages; costs are rates, published once a second.
func TestAccuracyCostOfReading(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		_, brokers := broker(t, 1, "orders")
		fill(t, brokers, "orders", 1, 31, 5000)
		lim := throttletest.Open(t, policy.Policy{})
		lim.Add("tag:own", throttletest.Quota(1000))
		r := newReader(t, kafka.ReaderConfig{Brokers: brokers, Topic: "orders"}, lim,
			kafkathrottle.WithOwner(dispatch.WithTag("own")))
		cost := func() float64 { return lim.Costs("kafka/" + brokers[0])["tag:own"] }
		// Until the leader is known, reading costs nothing.
		throttletest.Until(t, "reading costs the broker", func() bool {
			require.NoError(t, r.SetOffset(30))
			fetch(t, r)
			return cost() > 0
		})
		time.Sleep(2500 * time.Millisecond)
		require.NoError(t, r.SetOffset(0))
		before := cost()
		for range 30 {
			fetch(t, r)
		}
		time.Sleep(2500 * time.Millisecond)
		m.Within("cost of 30 messages of two pages, pages", (cost()-before)/quota.Page, 54, 66)
	})
}
