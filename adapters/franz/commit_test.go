package franzthrottle_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestCommitsEndAtWhatWasReturned: whichever way somebody commits, and whenever. Another member
// reads on from there.
func TestCommitsEndAtWhatWasReturned(t *testing.T) {
	t.Parallel()
	var c *franzthrottle.Client // of the case that runs
	onRevoked := kgo.OnPartitionsRevoked
	for _, way := range []struct {
		name string
		opts []kgo.Opt
		do   func(context.Context) error
	}{
		{"CommitUncommittedOffsets", nil, func(ctx context.Context) error { return c.CommitUncommittedOffsets(ctx) }},
		{"UncommittedOffsets", nil, func(ctx context.Context) error {
			c.CommitOffsetsSync(ctx, c.UncommittedOffsets(), nil)
			return nil
		}},
		{"as partitions are revoked", []kgo.Opt{onRevoked(
			func(ctx context.Context, cl *kgo.Client, _ map[string][]int32) { _ = cl.CommitUncommittedOffsets(ctx) },
		)}, nil},
		{"the Client as partitions are revoked", []kgo.Opt{onRevoked(
			func(ctx context.Context, _ *kgo.Client, _ map[string][]int32) { _ = c.CommitUncommittedOffsets(ctx) },
		)}, nil},
		{"without the callback's context", []kgo.Opt{onRevoked(
			func(context.Context, *kgo.Client, map[string][]int32) {
				c.CommitOffsetsSync(context.Background(), c.UncommittedOffsets(), nil)
			},
		)}, nil},
	} {
		t.Run(way.name, func(t *testing.T) {
			brokers := broker(t, 2, "orders")
			fill(t, brokers, "orders", 2, 100, 10)
			lim := throttletest.Open(t, perSecond(200))
			c = open(t, lim, brokers, member(way.opts...)...)
			n := map[int32]int64{}
			for n[0]+n[1] < 30 {
				poll(t, c, 10).EachRecord(func(r *kgo.Record) { n[r.Partition]++ })
			}
			if way.do != nil {
				require.NoError(t, way.do(t.Context()))
				assert.Empty(t, c.UncommittedOffsets())
			}
			c.Close()
			assert.Equal(t, n, committed(t, brokers))
			lim.Set(policy.Policy{})
			other := open(t, lim, brokers, member()...)
			for n[0]+n[1] < 200 {
				poll(t, other, 0).EachRecord(func(r *kgo.Record) {
					require.Equal(t, n[r.Partition], r.Offset)
					n[r.Partition]++
				})
			}
		})
	}
}

// committed returns the offsets that the group has committed.
func committed(t *testing.T, brokers []string) map[int32]int64 {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	require.NoError(t, err)
	defer cl.Close()
	topic := kmsg.NewOffsetFetchRequestGroupTopic()
	topic.Topic, topic.Partitions = "orders", []int32{0, 1}
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group, group.Topics = "billing", []kmsg.OffsetFetchRequestGroupTopic{topic}
	r := kmsg.NewPtrOffsetFetchRequest()
	r.Groups = append(r.Groups, group)
	resp, err := r.RequestWith(t.Context(), cl)
	require.NoError(t, err)
	found := map[int32]int64{}
	for _, g := range resp.Groups {
		for _, topic := range g.Topics {
			for _, p := range topic.Partitions {
				if p.Offset >= 0 {
					found[p.Partition] = p.Offset
				}
			}
		}
	}
	return found
}

// onUnbuffered is called with each record that kgo hands out.
type onUnbuffered func(*kgo.Record)

func (f onUnbuffered) OnFetchRecordUnbuffered(r *kgo.Record, polled bool) {
	if polled {
		f(r)
	}
}

// TestACommitDuringAPoll: a commit while another goroutine's poll takes records from kgo commits
// none of those.
func TestACommitDuringAPoll(t *testing.T) {
	brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 1000, 10)
	lim := throttletest.Open(t, perSecond(100))
	polls, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c := open(t, lim, brokers, member(kgo.WithHooks(onUnbuffered(func(*kgo.Record) {
		once.Do(func() {
			close(polls)
			<-goOn
		})
	})))...)
	go func() {
		defer close(goOn)
		<-polls
		assert.NoError(t, c.CommitUncommittedOffsets(context.WithoutCancel(t.Context())))
	}()
	poll(t, c, 0)
	require.Empty(t, committed(t, brokers))
}

// TestPurgeCommitsWhatWasReturned: the callback of a purge commits no more than that.
func TestPurgeCommitsWhatWasReturned(t *testing.T) {
	brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 1000, 10)
	lim := throttletest.Open(t, perSecond(100))
	done := make(chan error, 2) // Close revokes, too
	c := open(t, lim, brokers, member(kgo.OnPartitionsRevoked(
		func(ctx context.Context, cl *kgo.Client, _ map[string][]int32) {
			done <- cl.CommitUncommittedOffsets(ctx)
		},
	))...)
	n := int64(poll(t, c, 0).NumRecords())
	c.PurgeTopicsFromClient("orders")
	select {
	case err := <-done:
		require.NoError(t, err)
		require.Equal(t, map[int32]int64{0: n}, committed(t, brokers))
	case <-time.After(throttletest.Patience):
		require.Fail(t, "the callback was not called")
	}
}

// TestPreCommitFn: the user's is called.
func TestPreCommitFn(t *testing.T) {
	brokers := broker(t, 1, "orders")
	fill(t, brokers, "orders", 1, 100, 10)
	c := open(t, throttletest.Open(t, perSecond(100)), brokers, member()...)
	poll(t, c, 0)
	called := false
	ctx := kgo.PreCommitFnContext(t.Context(), func(*kmsg.OffsetCommitRequest) error {
		called = true
		return nil
	})
	require.NoError(t, c.CommitUncommittedOffsets(ctx))
	require.True(t, called)
}
