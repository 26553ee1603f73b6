// Package pulsar_test runs real consumer processes against a real Pulsar, Redis and etcd.
package pulsar_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// A scene is a topic of four partitions with subscriptions at its earliest message, and its policy.
type scene struct {
	t         testing.TB
	broker    *services.PulsarBroker
	namespace string
	topic     string
	store     configstore.Store

	policiesURL, permitsURL, cluster string // of throttled consumers
}

const partitions = 4

func newScene(t testing.TB, broker *services.PulsarBroker, messages int, subscriptions ...string) *scene {
	t.Helper()
	s := &scene{t: t, broker: broker, topic: "persistent://public/default/" + services.Name(t)}
	s.create(subscriptions...)
	s.produce(messages)
	s.openStore()
	return s
}

// create creates the topic and its subscriptions.
func (s *scene) create(subscriptions ...string) {
	s.t.Helper()
	name, err := utils.GetTopicName(s.topic)
	require.NoError(s.t, err)
	require.NoError(s.t, s.admin().Topics().Create(*name, partitions))
	s.subscriptions(subscriptions...)
}

func (s *scene) subscriptions(names ...string) {
	s.t.Helper()
	topic, err := utils.GetTopicName(s.topic)
	require.NoError(s.t, err)
	for _, name := range names {
		require.NoError(s.t, s.admin().Subscriptions().Create(*topic, name, utils.Earliest))
	}
}

func (s *scene) admin() pulsaradmin.Client {
	s.t.Helper()
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: s.broker.Web})
	require.NoError(s.t, err)
	return admin
}

// stats returns the statistics of a subscription over all partitions.
func (s *scene) stats(subscription string) utils.SubscriptionStats {
	s.t.Helper()
	name, err := utils.GetTopicName(s.topic)
	require.NoError(s.t, err)
	stats, err := s.admin().Topics().GetPartitionedStats(*name, false)
	require.NoError(s.t, err)
	return stats.Subscriptions[subscription]
}

func (s *scene) openStore() {
	s.t.Helper()
	s.policiesURL, s.permitsURL, s.cluster = services.EtcdURL(s.t), services.Redis(s.t), services.Name(s.t)
	var err error
	s.store, err = throttle.OpenPolicies(s.t.Context(), s.policiesURL)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, s.store.Close()) })
}

// env returns the environment of throttled consumers.
func (s *scene) env() []string {
	return []string{
		throttle.EnvPolicies + "=" + s.policiesURL,
		throttle.EnvPermits + "=" + s.permitsURL,
		throttle.EnvCluster + "=" + s.cluster,
	}
}

// produce writes messages 0, 1, 2...
func (s *scene) produce(messages int) {
	s.t.Helper()
	s.write(messages, func(i int) []byte { return fmt.Append(nil, i) })
}

func (s *scene) write(messages int, payload func(i int) []byte) {
	s.t.Helper()
	client, err := newClient(s.broker.URL)
	require.NoError(s.t, err)
	defer client.Close()
	p, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: s.topic, BatchingMaxMessages: 20, MaxPendingMessages: 5000,
	})
	require.NoError(s.t, err)
	failed := make(chan error, messages)
	sent := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { failed <- err }
	for i := range messages {
		p.SendAsync(s.t.Context(), &pulsar.ProducerMessage{Payload: payload(i)}, sent)
	}
	require.NoError(s.t, p.FlushWithCtx(s.t.Context()))
	for range messages {
		require.NoError(s.t, <-failed)
	}
	p.Close()
}

// limit sets the topic's limit, messages a second, and returns the time at which the policy store
// has it.
func (s *scene) limit(rate int64) time.Time {
	s.t.Helper()
	s.limitOf(s.topic, policy.Policy{
		MessageRate: policy.PerSecond(rate), CaughtUp: policy.CaughtUp{Throttle: new(true)},
	})
	return time.Now()
}

func (s *scene) limitOf(scope string, p policy.Policy) {
	s.t.Helper()
	parsed, err := policy.ParseScope(scope)
	require.NoError(s.t, err)
	set := func(snapshot configstore.Snapshot) ([]configstore.Change, error) {
		return snapshot.Set(parsed, p), nil
	}
	_, err = configstore.Edit(s.t.Context(), s.store, set)
	require.NoError(s.t, err)
}

func (s *scene) start(id int, subscription string, kind pulsar.SubscriptionType, env []string) *fleet.Process {
	s.t.Helper()
	return fleet.Start(s.t, id, subscription, append(env, consumer(s.broker.URL, s.topic, subscription, kind)))
}

// started waits until every process has received some messages.
func started(t *testing.T, all fleet.Fleet) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, p := range all {
			if len(p.Messages()) < 20 {
				return false
			}
		}
		return true
	}, 60*time.Second, 10*time.Millisecond, "a process receives no messages")
}

// TestOneLimitOverThreeSubscriptions: one limit holds over three subscriptions of two processes
// each, also while it is lowered and while a process is killed. In the end, each subscription has
// received every message, and only unacknowledged ones twice.
func TestOneLimitOverThreeSubscriptions(t *testing.T) {
	t.Parallel()
	const messages = 6000
	s := newScene(t, services.Pulsar(t), messages, "a", "b", "c")
	s.limit(600)
	var all fleet.Fleet
	for i := range 6 {
		kind := []pulsar.SubscriptionType{pulsar.Shared, pulsar.KeyShared, pulsar.Failover}[i%3]
		all = append(all, s.start(i, []string{"a", "b", "c"}[i%3], kind, s.env()))
	}
	require.Eventually(t, func() bool {
		return len(all.Messages("c")) > 20 && len(all.Messages("a")) > 20
	}, 60*time.Second, 10*time.Millisecond)
	time.Sleep(time.Second)
	loosely.Hold(t, func(loose assert.TestingT) {
		from := time.Now()
		time.Sleep(5 * time.Second)
		steady := all.Messages("")
		n := fleet.Between(steady, from, from.Add(5*time.Second))
		first := steady[0].Read
		highest := fleet.Window(steady, first, time.Now())
		t.Logf("600/s: %d in 5 s (%.1f %%), at most %d in any second, %d in the first one",
			n, float64(n)/30, highest, fleet.Between(steady, first, first.Add(time.Second)))
		assert.GreaterOrEqual(loose, n, 600*5*90/100)
		assert.LessOrEqual(t, n, 600*525/100)
		assert.LessOrEqual(t, highest, 600*125/100, "rate x (1 s + 0.25 s), from the first message on")
		for _, subscription := range []string{"a", "b", "c"} {
			share := fleet.Between(all.Messages(subscription), from, from.Add(5*time.Second))
			t.Logf("  %s: %d", subscription, share)
			assert.InDelta(loose, 1000, share, 200)
		}
	})

	loosely.Hold(t, func(loose assert.TestingT) {
		s.limit(600)
		time.Sleep(time.Second)
		changed := s.limit(150)
		time.Sleep(2100 * time.Millisecond)
		after := all.Messages("")
		lead := fleet.Between(after, changed.Add(100*time.Millisecond), changed.Add(350*time.Millisecond))
		n := fleet.Between(after, changed.Add(100*time.Millisecond), changed.Add(2100*time.Millisecond))
		t.Logf("150/s: %d between 100 ms and 350 ms after the change, %d in 2 s", lead, n)
		assert.LessOrEqual(loose, lead, 75, "100 ms after the change the new limit is in force")
		assert.LessOrEqual(loose, n, 150*225/100, "rate x (2 s + 0.25 s)")
		late := fleet.Between(after, changed.Add(time.Second), changed.Add(2100*time.Millisecond))
		require.LessOrEqual(t, late, 150*135/100, "rate x (1.1 s + 0.25 s), a second after the change")
		assert.GreaterOrEqual(loose, n, 150*2*90/100)
	})

	killed := all[0]
	killed.Kill(t)
	time.Sleep(time.Second)
	loosely.Hold(t, func(loose assert.TestingT) {
		from := time.Now()
		time.Sleep(2 * time.Second)
		n := fleet.Between(all.Messages(""), from, from.Add(2*time.Second))
		t.Logf("1 s after a process was killed: %d in 2 s", n)
		assert.GreaterOrEqual(loose, n, 150*2*90/100)
		assert.LessOrEqual(t, n, 150*225/100)
	})

	s.limit(100_000)
	for _, subscription := range []string{"a", "b", "c"} {
		require.Eventually(t, func() bool {
			return fleet.Distinct(all.Messages(subscription)) == messages
		}, 60*time.Second, 50*time.Millisecond, subscription)
	}
	for _, p := range all[1:] {
		p.Stop(t)
	}
	for _, subscription := range []string{"a", "b", "c"} {
		seen, again := map[string]fleet.Message{}, 0
		for _, m := range all.Messages(subscription) {
			if before, ok := seen[m.ID]; ok {
				again++
				assert.False(t, before.Committed && before.Consumer != killed.ID,
					"%s: message %s was acknowledged and is delivered again", subscription, m.ID)
			}
			seen[m.ID] = m
		}
		t.Logf("%s: %d messages were delivered again", subscription, again)
	}
}

// TestBrokerRestart: when a broker is killed during a wait and restarts, the consumers continue and
// no message is lost.
func TestBrokerRestart(t *testing.T) {
	t.Parallel()
	const messages = 1500
	broker := services.StartPulsar(t)
	s := newScene(t, &broker.PulsarBroker, messages, "a", "b")
	s.limit(150)
	all := fleet.Fleet{
		s.start(0, "a", pulsar.Shared, s.env()),
		s.start(1, "a", pulsar.Shared, s.env()),
		s.start(2, "b", pulsar.Exclusive, s.env()),
	}
	started(t, all)
	broker.Kill()
	time.Sleep(2 * time.Second)
	broker.Start()
	restarted := time.Now()
	had := len(all.Messages(""))
	require.Eventually(t, func() bool { return len(all.Messages("")) > had+100 }, 60*time.Second, 50*time.Millisecond)
	t.Logf("messages %v after the broker's restart", time.Since(restarted).Round(100*time.Millisecond))
	highest := fleet.Window(all.Messages(""), restarted.Add(-time.Minute), time.Now())
	assert.LessOrEqual(t, highest, 150*125/100)
	s.limit(100_000)
	for _, subscription := range []string{"a", "b"} {
		require.Eventually(t, func() bool {
			return fleet.Distinct(all.Messages(subscription)) == messages
		}, 60*time.Second, 50*time.Millisecond, subscription)
	}
	for _, p := range all {
		p.Stop(t)
	}
}
