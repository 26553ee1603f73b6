package pulsar_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/pairs"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// limiters runs a benchmark with this project's limit, and with Pulsar's own: limit names a kind
// of Pulsar's limits, such as dispatchRate, which is set to these messages and bytes a second.
func limiters(b *testing.B, limit string, messages, size int64, run func(b *testing.B, s *scene, ours bool)) {
	for _, limiter := range []string{"throttle", "pulsar"} {
		b.Run(limiter, func(b *testing.B) {
			for b.Loop() {
				s := newNamespace(b)
				if limiter == "pulsar" {
					s.post("namespaces/"+s.namespace+"/"+limit, fmt.Sprintf(
						`{"dispatchThrottlingRateInMsg":%d,"dispatchThrottlingRateInByte":%d,"ratePeriodInSecond":1}`,
						messages, size))
				}
				run(b, s, limiter == "throttle")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// newNamespace returns a scene with its own namespace, since Pulsar's limits belong to a
// namespace.
func newNamespace(b *testing.B) *scene {
	b.Helper()
	s := &scene{t: b, broker: services.Pulsar(b), namespace: "public/" + services.Name(b)}
	s.request(http.MethodPut, "namespaces/"+s.namespace, "")
	s.openStore(services.Redis(b))
	s.topic = "persistent://" + s.namespace + "/orders"
	return s
}

func (s *scene) post(path, body string) { s.t.Helper(); s.request(http.MethodPost, path, body) }

func (s *scene) request(method, path, body string) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.broker.Web+"/admin/v2/"+path,
		strings.NewReader(body))
	require.NoError(s.t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.Less(s.t, resp.StatusCode, 300, "%s %s: %s", method, path, text)
	return string(text)
}

// limiter returns a Limiter, or nil for Pulsar's own limit.
func (s *scene) limiter(ours bool) *dispatch.Limiter {
	s.t.Helper()
	if !ours {
		return nil
	}
	lim, err := throttle.Open(s.t.Context(), s.policiesURL, s.permitsURL, throttle.WithCluster(s.cluster))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, lim.Close()) })
	return lim
}

func (s *scene) client() pulsar.Client {
	s.t.Helper()
	client, err := newClient(s.broker.URL)
	require.NoError(s.t, err)
	s.t.Cleanup(client.Close)
	return client
}

func (s *scene) subscribe(
	client pulsar.Client, subscription string, kind pulsar.SubscriptionType, lim *dispatch.Limiter,
) *pulsarthrottle.Consumer {
	s.t.Helper()
	c, err := pulsarthrottle.Subscribe(client, pulsar.ConsumerOptions{
		Topic: s.topic, SubscriptionName: subscription, Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}, lim)
	require.NoError(s.t, err)
	return c
}

// An arrival is a message that came out of Receive.
type arrival struct {
	at   time.Duration // since the first
	size int
}

// drain receives messages for d, starting with the first one.
func drain(b *testing.B, d time.Duration, consumers ...*pulsarthrottle.Consumer) (all []arrival) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var mu sync.Mutex
	var start time.Time
	var receivers sync.WaitGroup
	for _, c := range consumers {
		receivers.Go(func() {
			for {
				m, err := c.Receive(ctx)
				if err != nil {
					return
				}
				mu.Lock()
				if start.IsZero() {
					start = time.Now()
					time.AfterFunc(d, cancel)
				}
				all = append(all, arrival{time.Since(start), len(m.Payload())})
				mu.Unlock()
				_ = c.Ack(m) // if this fails, the message is delivered again
			}
		})
	}
	receivers.Wait()
	return all
}

// within returns the messages and bytes of the first d.
func within(all []arrival, d time.Duration) (messages, size float64) {
	for _, a := range all {
		if a.at < d {
			messages++
			size += float64(a.size)
		}
	}
	return messages, size
}

// speed returns the messages and bytes a second while the backlog lasted, over at least one
// second.
func speed(all []arrival) (messages, size float64) {
	messages, size = within(all, window)
	seconds := min(window, max(time.Second, all[len(all)-1].at)).Seconds()
	return messages / seconds, size / seconds
}

const window = 10 * time.Second

// out returns the number of messages that the broker has sent to a subscription.
func (s *scene) out(subscription string) int64 {
	s.t.Helper()
	return s.stats(subscription).MsgOutCounter
}

// BenchmarkPulsarOneConsumer measures 1000/s on a topic of 4 partitions with one consumer and a
// backlog of 20,000 messages, for 10 s from the first message.
func BenchmarkPulsarOneConsumer(b *testing.B) {
	const rate = 1000
	limiters(b, "dispatchRate", rate, -1, func(b *testing.B, s *scene, ours bool) {
		s.create("a")
		s.produce(20_000)
		s.limit(rate)
		c := s.subscribe(s.client(), "a", pulsar.Exclusive, s.limiter(ours))
		all := drain(b, window, c)
		out := s.out("a")
		c.Close()
		n, _ := speed(all)
		first, _ := within(all, time.Second)
		b.ReportMetric(n/rate*100, "%-of-limit")
		b.ReportMetric(first/rate*100, "%-first-second")
		if ours {
			b.ReportMetric(float64(out)/rate*10, "%-sent-by-broker")
			b.ReportMetric(float64(out)-float64(len(all)), "messages-ahead")
		}
	})
}

// BenchmarkPulsarSubscriptions measures 1000/s on a topic of 4 partitions with three subscriptions
// of two processes each, for 10 s.
func BenchmarkPulsarSubscriptions(b *testing.B) {
	const rate = 1000
	limiters(b, "dispatchRate", rate, -1, func(b *testing.B, s *scene, ours bool) {
		names := []string{"a", "b", "c"}
		s.create(names...)
		messages := 8000
		if !ours {
			messages = 60_000 // more than Pulsar's own limit dispatches
		}
		s.produce(messages)
		s.limit(rate)
		var env []string
		if ours {
			env = s.env()
		}
		var all fleet.Fleet
		for i := range 6 {
			all = append(all, s.start(i, names[i%3], pulsar.Shared, env))
		}
		require.Eventually(b, func() bool {
			for _, name := range names {
				if len(all.Messages(name)) < 10 {
					return false
				}
			}
			return true
		}, throttletest.Patience, time.Millisecond)
		time.Sleep(time.Second)
		from := time.Now()
		time.Sleep(10 * time.Second)
		to, total := from.Add(10*time.Second), 0
		var shares []float64
		for _, name := range names {
			n := fleet.Between(all.Messages(name), from, to)
			total += n
			shares = append(shares, float64(n))
		}
		for _, p := range all {
			p.Kill(b)
		}
		b.ReportMetric(float64(total)/rate*10, "%-of-limit")
		mean := float64(total) / 3
		b.ReportMetric(100*max(slices.Max(shares)/mean-1, 1-slices.Min(shares)/mean), "%-share-off")
	})
}

// BenchmarkPulsarPerSubscription measures 100/s of one Shared subscription with 20 consumers on
// four Limiters, for 10 s.
func BenchmarkPulsarPerSubscription(b *testing.B) {
	const rate = 100
	limiters(b, "subscriptionDispatchRate", rate, -1, func(b *testing.B, s *scene, ours bool) {
		s.create("a")
		s.produce(8000)
		s.limitOf(s.topic+"?subscription=a", policy.Policy{
			MessageRate: policy.PerSecond(rate), CaughtUp: policy.CaughtUp{Throttle: new(true)},
		})
		var consumers []*pulsarthrottle.Consumer
		for range 4 {
			lim, client := s.limiter(ours), s.client()
			for range 5 {
				consumers = append(consumers, s.subscribe(client, "a", pulsar.Shared, lim))
			}
		}
		all := drain(b, window, consumers...)
		for _, c := range consumers {
			c.Close()
		}
		n, _ := speed(all)
		first, _ := within(all, time.Second)
		b.ReportMetric(n/rate*100, "%-of-limit")
		b.ReportMetric(first/rate*100, "%-first-second")
	})
}

// BenchmarkPulsarCaughtUp measures the latency of a message to a consumer that has caught up with
// a producer of 200/s, while another consumer drains a backlog at 1000/s. For comparison, bare is
// the same without a Limiter on the first consumer.
func BenchmarkPulsarCaughtUp(b *testing.B) {
	latency := func(b *testing.B, s *scene, drains, follows bool) (p50, p99 float64) {
		s.create("drains", "follows")
		s.produce(15_000)
		s.limitOf(s.topic, policy.Policy{MessageRate: policy.PerSecond(1000)})
		client := s.client()
		follower := s.subscribe(client, "follows", pulsar.Exclusive, nil)
		for range 15_000 { // the subscription reads all messages without a limit
			m, err := follower.Receive(b.Context())
			require.NoError(b, err)
			require.NoError(b, follower.Ack(m))
		}
		follower.Close()
		ctx, cancel := context.WithCancel(b.Context())
		drainer := s.subscribe(s.client(), "drains", pulsar.Exclusive, s.limiter(drains))
		follower = s.subscribe(client, "follows", pulsar.Exclusive, s.limiter(follows))
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: s.topic, DisableBatching: true})
		require.NoError(b, err)
		var loops sync.WaitGroup
		loops.Go(func() {
			for {
				m, err := drainer.Receive(ctx)
				if err != nil {
					return
				}
				_ = drainer.Ack(m) // if this fails, the message is delivered again
			}
		})
		loops.Go(func() {
			for tick := time.NewTicker(5 * time.Millisecond); ; {
				select {
				case <-tick.C:
					now := &pulsar.ProducerMessage{Payload: fmt.Append(nil, time.Now().UnixNano())}
					producer.SendAsync(ctx, now, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
				case <-ctx.Done():
					tick.Stop()
					return
				}
			}
		})
		var waits []float64
		for begin := time.Now(); time.Since(begin) < 8*time.Second; {
			m, err := follower.Receive(ctx)
			require.NoError(b, err)
			var sent int64
			_, err = fmt.Sscan(string(m.Payload()), &sent)
			if err == nil && time.Since(begin) > 3*time.Second { // after the first check of the backlog
				waits = append(waits, float64(time.Now().UnixNano()-sent)/1e6)
			}
			require.NoError(b, follower.Ack(m))
		}
		cancel()
		loops.Wait()
		producer.Close()
		follower.Close()
		drainer.Close()
		slices.Sort(waits)
		return waits[len(waits)/2], waits[len(waits)*99/100]
	}
	limiters(b, "dispatchRate", 1000, -1, func(b *testing.B, s *scene, ours bool) {
		p50, p99 := latency(b, s, ours, ours)
		b.ReportMetric(p50, "ms-p50")
		b.ReportMetric(p99, "ms-p99")
		if ours {
			_, bare := latency(b, newNamespace(b), true, false)
			b.ReportMetric(p99/bare, "x-bare-p99")
		}
	})
}

// BenchmarkPulsarUnlimited reads a topic of 4 partitions with a pulsar.Consumer and with a
// Consumer to which no limit applies: in each run, a new subscription drains the same messages of
// 100 bytes.
func BenchmarkPulsarUnlimited(b *testing.B) {
	const messages = 400_000
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			s := newNamespace(b)
			s.create()
			s.fill(messages, func(int) int { return 100 })
			client, lim := s.client(), throttletest.Open(b, policy.Policy{}).Limiter
			runs := 0
			drain := func(subscribe func(pulsar.ConsumerOptions) (pulsar.Consumer, error)) pairs.Cost {
				runs++
				name := fmt.Sprint("s", runs)
				s.subscriptions(name)
				c, err := subscribe(pulsar.ConsumerOptions{Topic: s.topic, SubscriptionName: name})
				require.NoError(b, err)
				defer c.Close()
				ctx := b.Context()
				return pairs.Measure(b, messages, func() {
					for range messages {
						m, err := c.Receive(ctx)
						if err == nil {
							err = c.Ack(m)
						}
						if err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			bare := func() pairs.Cost { return drain(client.Subscribe) }
			pairs.Report(b, 31, bare, func() pairs.Cost {
				return drain(func(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
					return pulsarthrottle.Subscribe(client, o, lim)
				})
			})
		}
	})
}

// BenchmarkPulsarBytes measures 1 MiB/s of messages of 100 B to 100 KiB, for 10 s from the first
// one.
func BenchmarkPulsarBytes(b *testing.B) {
	const rate = 1 << 20
	limiters(b, "dispatchRate", -1, rate, func(b *testing.B, s *scene, ours bool) {
		s.create("a")
		random := rand.New(rand.NewPCG(1, 1))
		s.fill(4000, func(int) int { return int(100 * math.Pow(1024, random.Float64())) })
		s.limitOf(s.topic, policy.Policy{
			ByteRate: policy.PerSecond(rate), CaughtUp: policy.CaughtUp{Throttle: new(true)},
		})
		c := s.subscribe(s.client(), "a", pulsar.Exclusive, s.limiter(ours))
		all := drain(b, window, c)
		c.Close()
		_, size := speed(all)
		_, first := within(all, time.Second)
		b.ReportMetric(size/rate*100, "%-of-limit")
		b.ReportMetric(first/rate*100, "%-first-second")
	})
}

// fill writes messages of the given sizes in bytes.
func (s *scene) fill(messages int, size func(i int) int) {
	s.t.Helper()
	s.write(messages, func(i int) []byte { return bytes.Repeat([]byte{'x'}, size(i)) })
}
