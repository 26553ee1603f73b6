// Package adaptertest is the suite of behaviours that the adapter of every broker has.
package adaptertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A Broker is a broker with an adapter under test.
type Broker interface {
	// Topic creates a topic, and returns its name as the client has it.
	Topic(t testing.TB, partitions int) string

	// Write appends messages to a partition of a topic.
	Write(t testing.TB, topic string, partition int, values []string)

	// Open opens a consumer that reads a topic from its beginning, or from where its group is.
	Open(t testing.TB, lim *throttletest.Limiter, o Options) Consumer

	// HideBacklog has the broker no longer answer how far a topic goes, until show is called.
	HideBacklog(t testing.TB) (show func())
}

// Options are those of a consumer.
type Options struct {
	Topic string

	// Alone is set for a consumer that may be of no group. Others are of one group.
	Alone bool

	// TagOf returns the tag of a message, by its value; nil: messages have none.
	TagOf func(value string) string
}

// A Consumer is a throttled consumer. Several goroutines may use it at once.
type Consumer interface {
	// Next returns the next message. It waits until there is one, or until ctx ends.
	Next(ctx context.Context) (Message, error)

	// Settle acknowledges a message, or commits it, and waits for that.
	Settle(ctx context.Context, m Message) error

	// Skip gives back what a message has used of the limits.
	Skip(m Message)

	// Rewind goes back to the first message of the topic.
	Rewind(ctx context.Context) error

	// Close ends the calls that wait. A second call does nothing.
	Close() error
}

// A Message is one that was returned. Its value begins with partition/number.
type Message struct {
	Value string
	Raw   any // the client's
}

// place returns the partition of a message, and its number there.
func (m Message) place(t testing.TB) (partition, number int) {
	t.Helper()
	_, err := fmt.Sscanf(m.Value, "%d/%d", &partition, &number)
	require.NoError(t, err, m.Value)
	return partition, number
}

// A world is a topic of a broker with a Limiter.
type world struct {
	testing.TB
	Broker
	lim   *throttletest.Limiter
	topic string
	next  []int // by partition: the number of the next message that is written
}

// create creates the topic.
func (w *world) create(partitions int) {
	w.Helper()
	w.topic, w.next = w.Topic(w, partitions), make([]int, partitions)
}

// size is the number of bytes of a message.
const size = 100

// fill appends n messages to each partition.
func (w *world) fill(n int) {
	w.Helper()
	for p := range w.next {
		values := make([]string, n)
		for i := range values {
			values[i] = fmt.Sprintf("%-*s", size, fmt.Sprintf("%d/%d", p, w.next[p]+i))
		}
		w.Write(w, w.topic, p, values)
		w.next[p] += n
	}
}

// open opens a consumer, which is closed at the end of the test.
func (w *world) open() Consumer { return w.openWith(Options{}) }

func (w *world) openWith(o Options) Consumer {
	w.Helper()
	o.Topic = w.topic
	c := w.Open(w, w.lim, o)
	w.Cleanup(func() { require.NoError(w, c.Close()) })
	return c
}

// patient returns a context that ends only in failure.
func (w *world) patient() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(w.Context()), throttletest.Patience)
}

// take returns the next message.
func (w *world) take(c Consumer) Message {
	w.Helper()
	ctx, cancel := w.patient()
	defer cancel()
	m, err := c.Next(ctx)
	require.NoError(w, err)
	return m
}

// inOrder takes n messages, settles them, and requires that those of each partition come in order,
// from next on.
func (w *world) inOrder(c Consumer, n int, next map[int]int) {
	w.Helper()
	for range n {
		m := w.take(c)
		w.requireNext(m, next)
		w.settle(c, m)
	}
}

func (w *world) requireNext(m Message, next map[int]int) {
	w.Helper()
	partition, number := m.place(w)
	require.Equal(w, next[partition], number, "of partition %d", partition)
	next[partition]++
}

func (w *world) settle(c Consumer, m Message) {
	w.Helper()
	ctx, cancel := w.patient()
	defer cancel()
	require.NoError(w, c.Settle(ctx, m))
}

// none requires that no message comes for a while.
func (w *world) none(c Consumer) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 300*time.Millisecond)
	defer cancel()
	m, err := c.Next(ctx)
	require.Error(w, err, "a message came: %.20s", m.Value)
	require.ErrorIs(w, err, context.DeadlineExceeded)
	require.Zero(w, m, "a message and an error")
}

// waits returns once that many consumers wait for a permit.
func (w *world) waits(consumers int) {
	w.Helper()
	throttletest.Until(w, "they wait for a permit", func() bool {
		waiting := 0
		for _, s := range w.lim.Stats().Subscriptions {
			waiting += s.Waiting
		}
		return waiting == consumers
	})
}

// waitFor takes the next message in another goroutine.
func (w *world) waitFor(c Consumer) <-chan Message {
	got := make(chan Message, 1)
	go func() {
		ctx, cancel := w.patient()
		defer cancel()
		m, err := c.Next(ctx)
		assert.NoError(w, err)
		got <- m
	}()
	return got
}

// charged is how much the limits of messages or of bytes have granted and not got back.
func (w *world) charged() (n int64) {
	for _, s := range w.lim.Stats().Subscriptions {
		for _, l := range s.Limits {
			n += l.Granted - l.Returned
		}
	}
	return n
}

// subscription returns the statistics of the only subscription.
func (w *world) subscription() dispatch.SubscriptionStats {
	w.Helper()
	all := w.lim.Stats().Subscriptions
	require.Len(w, all, 1)
	return all[0]
}

// always is a policy that holds for subscriptions without a backlog, too.
func always(p policy.Policy) policy.Policy {
	p.CaughtUp.Throttle = new(true)
	return p
}
