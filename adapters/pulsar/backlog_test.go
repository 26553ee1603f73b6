package pulsarthrottle_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// slow is a limit that does not apply to a subscription that has caught up.
func slow() policy.Policy {
	return policy.Policy{MessageRate: policy.PerSecond(20), CaughtUp: policy.CaughtUp{Backlog: new(int64(20))}}
}

// caughtUp waits until the subscription has caught up, or is behind again.
func caughtUp(t *testing.T, sub func() dispatch.SubscriptionStats, want bool) {
	t.Helper()
	require.Eventually(t, func() bool { return sub().CaughtUp == want }, throttletest.Patience, 10*time.Millisecond,
		"caught up: want %v", want)
}

// passesFree waits until messages that dispatch passes, no more than caughtUp.backlog at once, are
// not charged, since the subscription has caught up. They are while a busy broker leaves its
// backlog unknown.
func passesFree(t *testing.T, lim *throttletest.Limiter, dispatch func()) {
	t.Helper()
	charged := func() (n int64) {
		for _, l := range only(lim)().Limits {
			n += l.Granted - l.Returned
		}
		return n
	}
	for end := time.Now().Add(throttletest.Patience); ; {
		caughtUp(t, only(lim), true)
		before := charged()
		dispatch()
		if charged() == before {
			return
		}
		require.True(t, time.Now().Before(end), "messages of a subscription that has caught up are charged")
	}
}

func only(lim *throttletest.Limiter) func() dispatch.SubscriptionStats {
	return func() dispatch.SubscriptionStats { return lim.Stats().Subscriptions[0] }
}

// A subscription that has caught up is not throttled, and one that falls behind is throttled
// again, wherever the backlog comes from.
func TestBacklogs(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]struct {
		admin      bool
		partitions int
		kind       pulsar.SubscriptionType
		batch      int
	}{
		"admin":              {true, 0, pulsar.Shared, 1},
		"admin, partitions":  {true, 3, pulsar.Shared, 1},
		"admin, batches":     {true, 0, pulsar.Exclusive, 10},
		"ends":               {false, 0, pulsar.Exclusive, 1},
		"ends, partitions":   {false, 3, pulsar.KeyShared, 1},
		"ends, batches":      {false, 0, pulsar.Failover, 10},
		"ends, one batch":    {false, 0, pulsar.Exclusive, 60},
		"ends, one, zero":    {false, 0, pulsar.Exclusive, -60},
		"ends, zero-queue":   {false, 0, pulsar.Exclusive, -1},
		"ends, two together": {false, 2, pulsar.Shared, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBrokerClient(t)
			lim := throttletest.Open(t, slow())
			topic := w.topic(with.partitions)
			w.subscribe(topic, "billing")
			size := max(with.batch, -with.batch)
			w.produce(topic, 60, size)
			var opts []pulsarthrottle.Option
			if with.admin {
				opts = append(opts, pulsarthrottle.WithAdmin(w.admin))
			}
			options := pulsar.ConsumerOptions{Topic: topic, Type: with.kind, ReceiverQueueSize: 10}
			if with.batch < 0 {
				options.ReceiverQueueSize = 0
			}
			c := w.open(options, lim, opts...)
			var received atomic.Int64
			var stopped sync.Mutex
			var readers sync.WaitGroup
			defer readers.Wait()
			defer c.Close()
			read := func(c *pulsarthrottle.Consumer) {
				for {
					m, err := c.Receive(t.Context())
					if err != nil {
						return
					}
					_ = c.Ack(m) // it is delivered again if this failed
					stopped.Lock()
					received.Add(1)
					stopped.Unlock()
				}
			}
			defer func() { // consumers end, whatever has failed
				stopped.TryLock()
				stopped.Unlock()
			}()
			until := func(n int64) (took time.Duration) {
				t.Helper()
				begin := time.Now()
				require.Eventually(t, func() bool { return received.Load() >= n }, throttletest.Patience, time.Millisecond)
				return time.Since(begin)
			}
			readers.Go(func() { read(c) })
			if strings.Contains(name, "together") {
				other := w.open(options, lim, opts...)
				readers.Go(func() { read(other) })
				defer other.Close()
			}
			assert.Greater(t, until(60), 1500*time.Millisecond, "a backlog is drained at the limit")

			n := int64(60)
			passesFree(t, lim, func() {
				w.produce(topic, 10, 1)
				n += 10
				until(n)
			})

			stopped.Lock()
			w.produce(topic, 60, size)
			caughtUp(t, only(lim), false)
			stopped.Unlock()
			assert.Greater(t, until(n+60), time.Second, "a backlog is drained at the limit")
		})
	}
}

// Partitions without messages for a consumer do not keep it from catching up.
func TestIdlePartitions(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	// more than are produced
	lim := throttletest.Open(t, policy.Policy{MessageRate: policy.PerSecond(200)})
	topic := w.topic(4)
	w.produce(topic, 100, 1) // in all partitions, and before the subscription begins
	c, err := pulsarthrottle.Subscribe(w.client,
		pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "billing"}, lim.Limiter)
	require.NoError(t, err)
	defer c.Close()
	p, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	require.NoError(t, err)
	defer p.Close()
	stop := make(chan struct{})
	var sending sync.WaitGroup
	defer sending.Wait() // closing a producer races with SendAsync
	defer close(stop)
	sending.Go(func() { // never idle, and all in one partition
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-tick.C:
				p.SendAsync(context.Background(),
					&pulsar.ProducerMessage{Key: "one",
						Payload: []byte("x")}, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
			case <-stop:
				tick.Stop()
				return
			}
		}
	})
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer c.Close()
	receiving.Go(func() {
		for {
			m, err := c.Receive(context.Background())
			if err != nil {
				return
			}
			_ = c.Ack(m) // it is delivered again if this failed
		}
	})
	caughtUp(t, only(lim), true)
}

// A consumer of a pattern goes by the admin API, and without it by whether messages come.
func TestPatternCatchesUp(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	topic := w.topic(0)
	w.subscribe(topic, "a", "b")
	w.produce(topic, 60, 1)
	for subscription, opts := range map[string][]pulsarthrottle.Option{"a": nil,
		"b": {pulsarthrottle.WithAdmin(w.admin)}} {
		lim := throttletest.Open(t, slow())
		c := w.open(pulsar.ConsumerOptions{TopicsPattern: topic + ".*",
			SubscriptionName: subscription, AutoDiscoveryPeriod: 10 * time.Millisecond}, lim, opts...)
		begin := time.Now()
		receive(t, c, 50)
		if opts == nil {
			assert.EqualValues(t, -1, only(lim)().Backlog, "the client was not asked where its topics end")
		}
		receive(t, c, 10)
		assert.Greater(t, time.Since(begin), 1500*time.Millisecond, subscription)
		var receiving sync.WaitGroup
		receiving.Go(func() { _, _ = c.Receive(t.Context()) }) // there are no more
		caughtUp(t, only(lim), true)
		assert.LessOrEqual(t, only(lim)().Backlog, int64(20))
		c.Close()
		receiving.Wait()
	}
}

// A loop with deadlines that gets no messages, such as that of a standby, catches up.
func TestALoopWithDeadlinesCatchesUp(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, slow())
	topic := w.topic(0)
	w.produce(topic, 100, 1) // before the subscription begins
	c, err := pulsarthrottle.Subscribe(w.client,
		pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "billing"}, lim.Limiter)
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer cancel()
	receiving.Go(func() {
		for ctx.Err() == nil {
			soon, done := context.WithTimeout(ctx, 100*time.Millisecond)
			_, _ = c.Receive(soon) // there are no messages
			done()
		}
	})
	caughtUp(t, only(lim), true)
}

// A topic that stores nothing has a limit, and its backlog is not asked for.
func TestNonPersistent(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, slow())
	topic := "non-persistent://public/default/" + services.Name(t)
	c := w.open(pulsar.ConsumerOptions{Topic: topic, ReceiverQueueSize: 200}, lim,
		pulsarthrottle.WithAdmin(w.admin))
	ctx, stop := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	defer sending.Wait() // closing a client races with SendAsync
	defer stop()
	sending.Go(func() { // more than the limit
		p, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
		if !assert.NoError(t, err) {
			return
		}
		defer p.Close()
		for i := 0; ctx.Err() == nil; i++ {
			p.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: fmt.Append(nil, i)},
				func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
			time.Sleep(5 * time.Millisecond)
		}
	})
	receive(t, c, 1)
	begin := time.Now()
	receive(t, c, 40)
	assert.Greater(t, time.Since(begin), 1700*time.Millisecond, "40/20 s, less 250 ms")
	assert.EqualValues(t, -1, only(lim)().Backlog, "it is not asked for")
	c.Close()
}

// While the admin API fails, the failing path is logged once, and the ends of topics give the
// backlog.
func TestAdminUnavailable(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(http.ResponseWriter, *http.Request){
		"401": func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusUnauthorized)
		},
		"404": func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusNotFound)
		},
		"500": func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusInternalServerError)
		},
		"deadline": func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBrokerClient(t)
			target, err := url.Parse(w.broker.Web)
			require.NoError(t, err)
			var failing atomic.Bool
			failing.Store(true)
			proxy := httputil.NewSingleHostReverseProxy(target)
			server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if failing.Load() {
					fail(rw, r)
				} else {
					proxy.ServeHTTP(rw, r)
				}
			}))
			defer server.Close()
			admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: server.URL})
			require.NoError(t, err)
			var log throttletest.Log
			lim := throttletest.Open(t, slow())
			topic := w.topic(0)
			w.subscribe(topic, "billing")
			w.produce(topic, 30, 1)
			c := w.open(pulsar.ConsumerOptions{Topic: topic}, lim, pulsarthrottle.WithAdmin(admin),
				pulsarthrottle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			receive(t, c, 30)
			require.Eventually(t, func() bool { return only(lim)().CaughtUp }, throttletest.Patience, 10*time.Millisecond)
			assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			assert.Contains(t, log.String(), "/admin/v2/"+strings.Replace(topic, "://", "/", 1))
			assert.Contains(t, log.String(), name)
			failing.Store(false)
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "again") },
				throttletest.Patience, 10*time.Millisecond)
		})
	}
}

// A topic is asked for once a second, however many Consumers it has.
func TestOnePoller(t *testing.T) {
	t.Parallel()
	w := newBrokerClient(t)
	var asked atomic.Int64
	target, err := url.Parse(w.broker.Web)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		proxy.ServeHTTP(rw, r)
	}))
	defer server.Close()
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: server.URL})
	require.NoError(t, err)
	lim := throttletest.Open(t, policy.Policy{})
	topic := w.topic(2)
	w.subscribe(topic, "billing")
	for range 5 {
		w.open(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared}, lim, pulsarthrottle.WithAdmin(admin))
	}
	time.Sleep(2200 * time.Millisecond)
	assert.Zero(t, asked.Load(), "there is no limit")
	begin := time.Now()
	lim.Set(slow())
	require.Eventually(t, func() bool { return asked.Load() >= 3 }, throttletest.Patience, 10*time.Millisecond)
	assert.LessOrEqual(t, asked.Load(), 2+int64(time.Since(begin).Seconds()))
}
