package pulsarthrottle_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func (w *brokerClient) reader(options pulsar.ReaderOptions, lim *throttletest.Limiter) *pulsarthrottle.Reader {
	w.t.Helper()
	options.StartMessageID = pulsar.EarliestMessageID()
	var l *dispatch.Limiter
	if lim != nil {
		l = lim.Limiter
	}
	r, err := pulsarthrottle.CreateReader(w.client, options, l)
	require.NoError(w.t, err)
	w.t.Cleanup(r.Close)
	return r
}

func next(t testing.TB, r pulsar.Reader) pulsar.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	m, err := r.Next(ctx)
	require.NoError(t, err)
	return m
}

// Every method of a Reader, of CreateReader and of WrapReader.
func TestReader(t *testing.T) {
	type opener = func(*brokerClient, pulsar.ReaderOptions, *throttletest.Limiter) *pulsarthrottle.Reader
	for name, open := range map[string]opener{
		"created": (*brokerClient).reader,
		"wrapped": func(
			w *brokerClient, options pulsar.ReaderOptions, lim *throttletest.Limiter,
		) *pulsarthrottle.Reader {
			options.StartMessageID = pulsar.EarliestMessageID()
			inner, err := w.client.CreateReader(options)
			require.NoError(t, err)
			r, err := pulsarthrottle.WrapReader(inner, lim.Limiter, pulsarthrottle.WithSubscription("table"))
			require.NoError(t, err)
			t.Cleanup(r.Close)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBrokerClient(t)
			p := throttletest.PerSecond(100)
			// nothing tells when a message is done, so none is in flight
			p.MaxInFlight = new(int64(5))
			lim := throttletest.Open(t, p)
			topic := w.topic(0)
			w.produce(topic, 50, 1)
			r := open(w, pulsar.ReaderOptions{Topic: topic, SubscriptionName: "table",
				StartMessageIDInclusive: true}, lim)
			assert.Equal(t, topic, r.Topic())
			assert.Equal(t, "table", lim.Stats().Subscriptions[0].Subscription)
			if name == "created" {
				assert.EqualValues(t, 2, lim.Stats().Subscriptions[0].ReadAhead, "a queue of one, and one that waits")
			}

			begin := time.Now()
			read := 0
			var first pulsar.Message
			for ; r.HasNext(); read++ { // as a table view does
				m := next(t, r)
				if read == 0 {
					first = m
				}
			}
			assert.Equal(t, 50, read)
			assert.Greater(t, time.Since(begin), 300*time.Millisecond)

			require.NoError(t, r.Seek(first.ID()))
			assert.Equal(t, "0", string(next(t, r).Payload()))
			lim.Set(policy.Policy{Paused: new(true)})
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			_, err := r.Next(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.True(t, r.HasNext(), "one waits for its permit")
			lim.Set(throttletest.PerSecond(100))
			assert.Equal(t, "1", string(next(t, r).Payload()))
			require.NoError(t, r.SeekByTime(time.Now().Add(-time.Hour)))
			assert.Equal(t, "0", string(next(t, r).Payload()))
			id, err := r.GetLastMessageID()
			require.NoError(t, err)
			assert.Positive(t, id.EntryID())

			lim.Set(policy.Policy{Paused: new(true)})
			ended := make(chan error, 1)
			go func() {
				_, err := r.Next(context.Background())
				ended <- err
			}()
			require.Eventually(t, func() bool { return waiting(lim) == 1 }, throttletest.Patience, time.Millisecond)
			r.Close()
			require.Error(t, <-ended)
			assert.Empty(t, lim.Stats().Subscriptions)
		})
	}
}

// At the end of its topic a Reader is not throttled, whatever the number of partitions.
func TestReaderCatchesUp(t *testing.T) {
	for _, partitions := range []int{0, 2} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			t.Parallel()
			w := newBrokerClient(t)
			lim := throttletest.Open(t, slow())
			topic := w.topic(partitions)
			w.produce(topic, 50, 1)
			r := w.reader(pulsar.ReaderOptions{Topic: topic}, lim)
			read := make(chan struct{}, 200)
			var reading sync.WaitGroup
			defer reading.Wait()
			defer r.Close()
			reading.Go(func() {
				for {
					if _, err := r.Next(context.Background()); err != nil {
						return
					}
					read <- struct{}{}
				}
			})
			begin := time.Now()
			for range 50 {
				<-read
			}
			assert.Greater(t, time.Since(begin), 700*time.Millisecond)
			passesFree(t, lim, func() {
				w.produce(topic, 10, 1)
				for range 10 {
					<-read
				}
			})
		})
	}
}

// Without a Limiter, every call is the client's.
func TestReaderWithoutALimiter(t *testing.T) {
	w := newBrokerClient(t)
	topic := w.topic(0)
	w.produce(topic, 3, 1)
	r := w.reader(pulsar.ReaderOptions{Topic: topic}, nil)
	for range 3 {
		assert.True(t, r.HasNext())
		next(t, r)
	}
	assert.False(t, r.HasNext())
	require.NoError(t, r.SeekByTime(time.Now().Add(-time.Hour)))
	next(t, r)
}
