package numaflowthrottle_test

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestDataPlaneGone: the messages that a data plane has read and not settled when its streams end
// are nacked, in order.
func TestDataPlaneGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10}
		s := source(t, u, policy.Policy{})
		reads, die := context.WithCancel(t.Context())
		acks, dieToo := context.WithCancel(t.Context())
		got, _ := read(reads, s, 10, time.Second)
		s.Ack(acks, offsetsOf(got[:3]))
		s.Nack(t.Context(), nacks(got[3:4]))
		die()
		time.Sleep(time.Minute)
		assert.Equal(t, got[3:4], u.nacked) // Acks may still come
		s.Ack(acks, offsetsOf(got[4:6]))
		dieToo()
		synctest.Wait()
		assert.Equal(t, got[:3], u.acked[:3])
		assert.Equal(t, got[4:6], u.acked[3:])
		assert.Equal(t, slices.Concat(got[3:4], got[6:]), u.nacked)
	})
}

type nackRequest []sourcer.NackOffset

func (n nackRequest) Offsets() []sourcer.NackOffset { return n }

func nacks(values []string) (all nackRequest) {
	for _, o := range offsetsOf(values) {
		all = append(all, sourcer.NackOffset{Offset: o})
	}
	return all
}

// TestRequeue: up to the bound they are kept and handed over again, first and in order, once the
// data plane is back; they count as pending.
func TestRequeue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 20}
		s := source(t, u, policy.Policy{}, numaflowthrottle.WithRequeue(6))
		first, die := context.WithCancel(t.Context())
		got, _ := read(first, s, 10, time.Second)
		s.Ack(first, offsetsOf(got[:2]))
		die()
		synctest.Wait()
		assert.Equal(t, got[6:], u.nacked)
		assert.EqualValues(t, 10+4, s.Pending(t.Context()))
		second, cancel := context.WithCancel(t.Context())
		defer cancel()
		again, _ := read(second, s, 3, time.Second)
		assert.Equal(t, got[2:5], again)
		again, _ = read(second, s, 10, time.Second)
		assert.Equal(t, got[5:6], again, "what is there comes at once")
		again, _ = read(second, s, 10, time.Second)
		assert.Equal(t, numbers(10, 20), again)
	})
}

// TestRequeueAgain: messages that are abandoned a second time come before those that still wait to
// be delivered again.
func TestRequeueAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10}
		s := source(t, u, policy.Policy{}, numaflowthrottle.WithRequeue(10))
		first, die := context.WithCancel(t.Context())
		got, _ := read(first, s, 10, time.Second)
		die()
		second, die := context.WithCancel(t.Context())
		again, _ := read(second, s, 4, time.Second)
		assert.Equal(t, got[:4], again)
		die()
		third, cancel := context.WithCancel(t.Context())
		defer cancel()
		again, _ = read(third, s, 10, time.Second)
		assert.Equal(t, got, again)
		assert.Empty(t, u.nacked)
	})
}

// TestRequeueIsKeptUpToItsBound: what is settled makes room for others.
func TestRequeueIsKeptUpToItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 30}
		s := source(t, u, policy.Policy{}, numaflowthrottle.WithRequeue(6))
		ctx, die := context.WithCancel(t.Context())
		got, _ := read(ctx, s, 10, time.Second)
		s.Ack(ctx, offsetsOf(got[:5]))
		more, _ := read(ctx, s, 10, time.Second)
		s.Ack(ctx, offsetsOf(got[5:]))
		die()
		synctest.Wait()
		assert.Equal(t, more[5:], u.nacked)
		next, cancel := context.WithCancel(t.Context())
		defer cancel()
		again, _ := read(next, s, 10, time.Second)
		assert.Equal(t, more[:5], again)
	})
}

// TestPendingUnknown: it stays so, whatever is to be handed over again.
func TestPendingUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unknown{user{left: 10}}
		s, err := numaflowthrottle.Source(u, open(t, policy.Policy{}),
			numaflowthrottle.WithTopic(topic), numaflowthrottle.WithRequeue(5), quiet)
		require.NoError(t, err)
		first, die := context.WithCancel(t.Context())
		_, _ = read(first, s, 5, time.Second)
		s.Ack(first, offsets{})
		die()
		synctest.Wait()
		assert.EqualValues(t, -1, s.Pending(t.Context()))
	})
}

// unknown does not know its backlog.
type unknown struct{ user }

func (*unknown) Pending(context.Context) int64 { return -1 }

// TestReadEndsAfterItsStreams: a Read that ends when its data plane's streams have ended already
// has its messages nacked.
func TestReadEndsAfterItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 1}
		s := source(t, u, policy.Policy{})
		ctx, die := context.WithCancel(t.Context())
		got, _ := read(ctx, s, 1, time.Second)
		s.Ack(ctx, offsetsOf(got))
		u.has(5, func() { time.Sleep(time.Second) })
		time.AfterFunc(100*time.Millisecond, die)
		_, _ = read(ctx, s, 5, 2*time.Second) // some of them may have been handed over
		synctest.Wait()
		assert.Equal(t, numbers(1, 6), u.nacked)
	})
}

// TestDataPlaneBack: a new stream of Reads is a new data plane, whatever became of the old one's
// Acks.
func TestDataPlaneBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 20}
		s := source(t, u, policy.Policy{})
		first, die := context.WithCancel(t.Context())
		got, _ := read(first, s, 10, time.Second)
		die()
		second, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, _ = read(second, s, 5, time.Second)
		assert.Equal(t, got, u.nacked)
		synctest.Wait()
		assert.Equal(t, got, u.nacked)
	})
}

// TestReadOfTheDead: a Read of a data plane that died may end after the Read of the next one has
// started. Its messages are refused, and none of the next Read.
func TestReadOfTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10}
		s := source(t, u, policy.Policy{})
		first, die := context.WithCancel(t.Context())
		u.has(10, func() { time.Sleep(time.Second) })
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = read(first, s, 5, 2*time.Second)
		}()
		synctest.Wait()
		die()
		u.has(5, nil)
		second, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, _ := read(second, s, 5, time.Second)
		<-done
		assert.Equal(t, numbers(5, 10), got)
		assert.Equal(t, numbers(0, 5), u.nacked)
		s.Ack(second, offsetsOf(got))
		cancel()
		synctest.Wait()
		assert.Equal(t, numbers(0, 5), u.nacked)
	})
}

// TestAcksOutOfOrder: in any order of Acks, the remaining messages are the unacknowledged ones.
func TestAcksOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 3000}
		s := source(t, u, policy.Policy{})
		ctx, die := context.WithCancel(t.Context())
		random := rand.New(rand.NewPCG(1, 2))
		var open []string
		for range 30 { // batches overlap
			got, _ := read(ctx, s, 100, time.Second)
			open = append(open, got...)
			random.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
			n := random.IntN(len(open))
			s.Ack(ctx, offsetsOf(append([]string{"of another", "of another"}, open[:n]...)))
			open = open[n:]
		}
		die()
		synctest.Wait()
		assert.ElementsMatch(t, open, u.nacked)
		asRead := func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }
		assert.True(t, slices.IsSortedFunc(u.nacked, asRead), "in the order in which they were read")
	})
}

// TestLateAcks: Acks that begin when the stream of Reads has ended already, and take their time,
// are waited for; also those of a data plane that came after another.
func TestLateAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 20}
		s := source(t, u, policy.Policy{})
		for range 2 {
			reads, end := context.WithCancel(t.Context())
			acks, endAcks := context.WithCancel(t.Context())
			got, _ := read(reads, s, 10, time.Second)
			end()
			time.Sleep(20 * time.Second)
			s.Ack(acks, offsetsOf(got[:5]))
			time.Sleep(time.Hour)
			s.Ack(acks, offsetsOf(got[5:]))
			endAcks()
			synctest.Wait()
			assert.Empty(t, u.nacked)
		}
	})
}

// TestNoAcks: if no Acks come at all, half a minute after the Reads have ended it is over.
func TestNoAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10}
		s := source(t, u, policy.Policy{})
		ctx, die := context.WithCancel(t.Context())
		got, _ := read(ctx, s, 10, time.Second)
		die()
		time.Sleep(29 * time.Second)
		assert.Empty(t, u.refused())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Equal(t, got, u.refused())
	})
}

// TestAckOfRequeued: a late Ack of what is to be handed over again counts.
func TestAckOfRequeued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10}
		s := source(t, u, policy.Policy{}, numaflowthrottle.WithRequeue(100))
		first, die := context.WithCancel(t.Context())
		got, _ := read(first, s, 10, time.Second)
		s.Ack(first, offsetsOf(got[:1]))
		die()
		synctest.Wait()
		second, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.Ack(second, offsetsOf(got[1:8]))
		again, _ := read(second, s, 10, time.Second)
		assert.Equal(t, got[8:], again)
	})
}

// TestOneIsNeverSettled: it does not keep others from being known.
func TestOneIsNeverSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 1_000_000}
		s := source(t, u, policy.Policy{})
		ctx, die := context.WithCancel(t.Context())
		stuck, _ := read(ctx, s, 1, time.Second)
		for range 250 {
			got, _ := read(ctx, s, 1000, time.Second)
			s.Ack(ctx, offsetsOf(got))
		}
		last, _ := read(ctx, s, 1000, time.Second)
		die()
		synctest.Wait()
		assert.Equal(t, append(stuck, last...), u.nacked)
	})
}

// TestTooManyUnacknowledged: what is tracked is bounded, and that is logged.
func TestTooManyUnacknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		u := &user{left: 1_000_000}
		s := source(t, u, policy.Policy{}, numaflowthrottle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		ctx, die := context.WithCancel(t.Context())
		for range 12 {
			got, _ := read(ctx, s, 10_000, time.Second)
			s.Ack(ctx, offsetsOf(got[:10])) // of the first ten batches
		}
		assert.Equal(t, 1, strings.Count(log.String(), "too many messages are unacknowledged"))
		die()
		synctest.Wait()
		assert.Equal(t, 99_990, len(u.nacked))
	})
}
