package franzthrottle_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestTransactions: sessions copy a topic in transactions, of which some are aborted, while records
// wait and members come and go. Each record is in the copy once, and those of a partition in order.
func TestTransactions(t *testing.T) {
	t.Parallel()
	const partitions, each, members = 4, 200, 3
	brokers := broker(t, partitions, "orders", "copy")
	fill(t, brokers, "orders", partitions, each, 10)
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add("kafka://public/default/orders", perSecond(500))
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	var copied tally
	var running sync.WaitGroup
	for m := range members {
		running.Go(func() {
			for ctx.Err() == nil {
				s, err := franzthrottle.NewSession(lim.Limiter, []kgo.Opt{
					kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon), kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("copier"),
					kgo.TransactionalID(string(rune('a' + m))), kgo.HeartbeatInterval(50 * time.Millisecond),
					kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DefaultProduceTopic("copy"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
				})
				if !assert.NoError(t, err) {
					return
				}
				until, stop := context.WithTimeout(ctx, time.Duration(500+rand.IntN(1500))*time.Millisecond)
				for until.Err() == nil {
					fetches := s.PollRecords(until, 1+rand.IntN(50))
					if fetches.Err() != nil || !assert.NoError(t, s.Begin()) {
						continue
					}
					fetches.EachRecord(func(r *kgo.Record) {
						s.Produce(ctx, &kgo.Record{Partition: r.Partition, Value: r.Value}, nil)
					})
					_, err := s.End(ctx, kgo.TransactionEndTry(rand.IntN(4) > 0))
					if err != nil && ctx.Err() == nil {
						t.Log(err)
					}
				}
				stop()
				s.Close()
			}
		})
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("copy"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(soon))
	require.NoError(t, err)
	defer reader.Close()
	next := map[int32]int{}
	for ctx.Err() == nil {
		reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			want := fmt.Sprintf("%-10s", fmt.Sprintf("%d/%d", r.Partition, next[r.Partition]))
			assert.Equal(t, want, string(r.Value))
			next[r.Partition]++
			copied.addValue(string(r.Value))
		})
		if n, _ := copied.count(); n == partitions*each {
			cancel()
		}
	}
	running.Wait()
	final, end := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
	defer end()
	for final.Err() == nil { // what comes late would be a copy too many
		reader.PollFetches(final).EachRecord(func(r *kgo.Record) { copied.addValue(string(r.Value)) })
	}
	n, again := copied.count()
	assert.Equal(t, partitions*each, n)
	assert.Zero(t, again)
}

// session opens a session that copies orders.
func session(t *testing.T, lim *throttletest.Limiter, brokers []string, opts ...kgo.Opt) *franzthrottle.Session {
	t.Helper()
	s, err := franzthrottle.NewSession(lim.Limiter, append([]kgo.Opt{kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(soon),
		kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"), kgo.HeartbeatInterval(50 * time.Millisecond),
		kgo.TransactionalID("copier"), kgo.DefaultProduceTopic("copy")}, opts...))
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// TestEndAgain: an End that failed is called again, and commits what was returned.
func TestEndAgain(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 1, "orders", "copy")
	fill(t, brokers, "orders", 1, 1000, 10)
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add(orders, perSecond(200))
	s := session(t, lim, brokers)
	fetches := s.PollRecords(t.Context(), 0)
	require.NoError(t, fetches.Err())
	require.NoError(t, s.Begin())
	fetches.EachRecord(func(r *kgo.Record) { s.Produce(t.Context(), &kgo.Record{Value: r.Value}, nil) })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	done, err := s.End(ended, kgo.TryCommit)
	require.Error(t, err)
	require.False(t, done)
	done, err = s.End(t.Context(), kgo.TryCommit)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, map[int32]int64{0: int64(fetches.NumRecords())}, committed(t, brokers))
}

// TestAPollDuringAnEnd: a poll waits for the End of a transaction, but no longer than its context.
func TestAPollDuringAnEnd(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "copy"))
	require.NoError(t, err)
	defer cluster.Close()
	brokers := cluster.ListenAddrs()
	fill(t, brokers, "orders", 1, 1000, 10)
	lim := throttletest.Open(t, policy.Policy{})
	lim.Add(orders, perSecond(1000))
	s := session(t, lim, brokers)
	n := s.PollRecords(t.Context(), 5).NumRecords()
	require.NotZero(t, n)
	lim.Add(orders, policy.Policy{MessageRate: policy.PerSecond(0)}) // what is kept needs no permits
	throttletest.Until(t, "no limit applies", func() bool { return len(lim.Stats().Subscriptions[0].Limits) == 0 })
	require.NoError(t, s.Begin())
	committing, polled := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(polled) })
	defer goOn()
	cluster.ControlKey(int16(kmsg.TxnOffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(committing)
		<-polled
		return nil, nil, false
	})
	ended := make(chan error, 1)
	go func() {
		_, err := s.End(t.Context(), kgo.TryCommit)
		ended <- err
	}()
	<-committing
	for _, ctx := range []context.Context{nil, t.Context()} {
		if ctx != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, soon)
			defer cancel()
		}
		require.Zero(t, s.PollRecords(ctx, 0).NumRecords())
	}
	goOn()
	require.NoError(t, <-ended)
	require.Equal(t, map[int32]int64{0: int64(n)}, committed(t, brokers))
}

// TestRevokedInATransaction: records of a transaction that ends after its partitions were revoked
// are not in flight for ever.
func TestRevokedInATransaction(t *testing.T) {
	t.Parallel()
	brokers := broker(t, 2, "orders", "copy")
	fill(t, brokers, "orders", 2, 200, 10)
	lim := throttletest.Open(t, policy.Policy{})
	limit := perSecond(1000)
	limit.MaxInFlight = new(int64(50))
	lim.Add(orders, limit)
	var revoked atomic.Int64
	s := session(t, lim, brokers, kgo.Balancers(kgo.RangeBalancer()),
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) { revoked.Add(1) }))
	require.NotZero(t, poll(t, s.Throttled(), 0).NumRecords())
	polls := func(until func() bool) func() bool {
		return func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			s.PollRecords(ctx, 0)
			return until()
		}
	}
	s.Client().ForceRebalance()
	throttletest.Until(t, "the session is told of the first loss", polls(func() bool { return revoked.Load() == 1 }))
	var joined atomic.Bool
	other := session(t, lim, brokers, kgo.Balancers(kgo.RangeBalancer()), kgo.TransactionalID("other"),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { joined.Store(true) }))
	throttletest.Until(t, "another session gets a partition", polls(joined.Load))
	require.NoError(t, s.Begin())
	_, err := s.End(t.Context(), kgo.TryAbort)
	require.NoError(t, err)
	other.Close()
	for n := 0; n < 400; {
		n += poll(t, s.Throttled(), 0).NumRecords()
		require.NoError(t, s.Begin())
		_, err := s.End(t.Context(), kgo.TryCommit)
		require.NoError(t, err)
	}
	require.Zero(t, lim.Stats().Subscriptions[0].InFlight)
}
