package pulsarthrottle_test

import (
	"bytes"
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
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// slow is a limit that does not apply to a subscription that has caught up.
func slow() policy.Policy {
	return policy.Policy{MessageRate: policy.PerSecond(20), CaughtUp: policy.CaughtUp{Backlog: new(int64(20))}}
}

// caughtUp waits until the subscription has caught up, or is behind again. If a busy broker does
// not answer, the last backlog is valid for five seconds.
func caughtUp(t *testing.T, sub func() dispatch.SubscriptionStats, want bool) {
	t.Helper()
	for end := time.Now().Add(8 * time.Second); sub().CaughtUp != want; time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "caught up: %v, backlog %d", sub().CaughtUp, sub().Backlog)
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
		long       bool
	}{
		"admin":              {true, 0, pulsar.Shared, 1, true},
		"admin, partitions":  {true, 3, pulsar.Shared, 1, false},
		"admin, batches":     {true, 0, pulsar.Exclusive, 10, false},
		"ends":               {false, 0, pulsar.Exclusive, 1, false},
		"ends, partitions":   {false, 3, pulsar.KeyShared, 1, false},
		"ends, batches":      {false, 0, pulsar.Failover, 10, true},
		"ends, one batch":    {false, 0, pulsar.Exclusive, 60, false},
		"ends, one, zero":    {false, 0, pulsar.Exclusive, -60, false},
		"ends, zero-queue":   {false, 0, pulsar.Exclusive, -1, true},
		"ends, two together": {false, 2, pulsar.Shared, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			if with.long != permitstest.Long() {
				t.Skip("the others show as much: THROTTLE_LONG runs those that are left out without it")
			}
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
				require.Eventually(t, func() bool { return received.Load() >= n }, 20*time.Second, time.Millisecond)
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
			loosely.Hold(t, func(loose assert.TestingT) {
				caughtUp(t, only(lim), true)
				begin := time.Now()
				for i := range 15 { // no more than caughtUp.backlog at once
					w.produceFrom(topic, i*10, 10, 1)
					until(n)
					n += 10
				}
				until(n)
				assert.Less(loose, time.Since(begin), 6*time.Second, "150 messages at 20 a second would take 7.5 s")
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
	go func() {
		for {
			m, err := c.Receive(context.Background())
			if err != nil {
				return
			}
			_ = c.Ack(m) // it is delivered again if this failed
		}
	}()
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
		go func() { _, _ = c.Receive(t.Context()) }() // there are no more
		caughtUp(t, only(lim), true)
		assert.LessOrEqual(t, only(lim)().Backlog, int64(20))
		c.Close()
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
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			soon, done := context.WithTimeout(ctx, 100*time.Millisecond)
			_, _ = c.Receive(soon) // there are no messages
			done()
		}
	}()
	caughtUp(t, only(lim), true)
}

// A topic that stores nothing has a limit, and its backlog is not asked for.
func TestNonPersistent(t *testing.T) {
	t.Parallel()
	loosely.Hold(t, func(loose assert.TestingT) {
		w := newBrokerClient(t)
		lim := throttletest.Open(t, slow())
		topic := "non-persistent://public/default/" + services.Name(t)
		c := w.open(pulsar.ConsumerOptions{Topic: topic, ReceiverQueueSize: 200}, lim,
			pulsarthrottle.WithAdmin(w.admin))
		var sending sync.WaitGroup
		defer sending.Wait() // closing a client races with SendAsync
		sending.Go(func() {
			p, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
			if !assert.NoError(t, err) {
				return
			}
			defer p.Close()
			for i := range 400 {
				p.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: fmt.Append(nil, i)},
					func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
				time.Sleep(5 * time.Millisecond)
			}
		})
		n := len(drainUntil(t, c, 2500*time.Millisecond, 400))
		assert.GreaterOrEqual(loose, n, 30)
		assert.LessOrEqual(t, n, 80)
		begin := time.Now()
		c.Close()
		assert.Less(loose, time.Since(begin), time.Second, "no look was under way")
	})
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
			var log safeBuffer
			lim := throttletest.Open(t, slow())
			topic := w.topic(0)
			w.subscribe(topic, "billing")
			w.produce(topic, 30, 1)
			c := w.open(pulsar.ConsumerOptions{Topic: topic}, lim, pulsarthrottle.WithAdmin(admin),
				pulsarthrottle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			receive(t, c, 30)
			require.Eventually(t, func() bool { return only(lim)().CaughtUp }, 6*time.Second, 10*time.Millisecond)
			assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			assert.Contains(t, log.String(), "/admin/v2/"+strings.Replace(topic, "://", "/", 1))
			assert.Contains(t, log.String(), name)
			failing.Store(false)
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "again") },
				6*time.Second, 10*time.Millisecond)
		})
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
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
	lim.Set(slow())
	loosely.Hold(t, func(loose assert.TestingT) {
		before := asked.Load()
		time.Sleep(3200 * time.Millisecond)
		assert.InDelta(loose, 3, asked.Load()-before, 1)
	})
}
