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
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
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

func newScene(
	t testing.TB, broker *services.PulsarBroker, permits string, messages int, subscriptions ...string,
) *scene {
	t.Helper()
	s := &scene{t: t, broker: broker, topic: "persistent://public/default/" + services.Name(t)}
	s.create(subscriptions...)
	s.produce(messages)
	s.openStore(permits)
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

func (s *scene) openStore(permits string) {
	s.t.Helper()
	s.policiesURL, s.permitsURL, s.cluster = services.EtcdURL(s.t), permits, services.Name(s.t)
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
	_, err = configstore.Edit(s.t.Context(), s.store, configstore.By{}, set)
	require.NoError(s.t, err)
}

func (s *scene) start(id int, subscription string, kind pulsar.SubscriptionType, env []string) *fleet.Process {
	s.t.Helper()
	return fleet.Start(s.t, id, subscription, append(env, consumer(s.broker.URL, s.topic, subscription, kind)))
}

// more waits until each subscription has received n messages more.
func more(t *testing.T, n int, all fleet.Fleet, subscriptions ...string) {
	t.Helper()
	for _, subscription := range subscriptions {
		before := len(all.Messages(subscription))
		require.Eventually(t, func() bool { return len(all.Messages(subscription)) >= before+n }, throttletest.Patience,
			10*time.Millisecond, "%s: %d messages more than %d", subscription, n, before)
	}
}

// complete waits until each subscription has received each of the messages.
func complete(t *testing.T, messages int, all fleet.Fleet, subscriptions ...string) {
	t.Helper()
	for _, subscription := range subscriptions {
		require.Eventually(t, func() bool {
			return fleet.Distinct(all.Messages(subscription)) == messages
		}, throttletest.Patience, 50*time.Millisecond, subscription)
	}
}

// shared waits until the permits of the topic are allocated at a rate.
func (s *scene) shared(rate float64) (since time.Time) {
	s.t.Helper()
	store, err := throttle.OpenPermits(s.permitsURL)
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, store.Close()) }()
	topic, err := policy.ParseTopic(s.topic)
	require.NoError(s.t, err)
	require.Eventually(s.t, func() bool {
		state, _, err := store.State(s.t.Context(), permits.LimitKey(s.cluster, policy.TopicScope(topic), false))
		return err == nil && state.Rate == rate
	}, throttletest.Patience, time.Millisecond)
	return time.Now()
}

var subscriptions = []string{"a", "b", "c"}

// six starts two processes of each of three subscriptions.
func (s *scene) six() (all fleet.Fleet) {
	for i := range 6 {
		kind := []pulsar.SubscriptionType{pulsar.Shared, pulsar.KeyShared, pulsar.Failover}[i%3]
		all = append(all, s.start(i, subscriptions[i%3], kind, s.env()))
	}
	return all
}

const slack = 250 * time.Millisecond // see package window

// TestOneLimit: one limit holds over three subscriptions of two processes each, also when it is
// lowered and when a process is killed. In the end, each subscription has received every message,
// and only unacknowledged ones twice.
func TestOneLimit(t *testing.T) {
	t.Parallel()
	const messages, before, after = 3000, 600, 150
	s := newScene(t, services.Pulsar(t), services.Patient(services.Redis(t)), messages, subscriptions...)
	s.limit(before)
	begin := time.Now()
	all := s.six()
	more(t, 600, all, subscriptions...) // at twice the limit, 600 would exceed it
	s.limit(after)
	lowered := s.shared(after)
	read := all.Messages("")
	require.NoError(t, fleet.WithinRate(read, before, begin, slack))

	killed := all[0]
	killed.Kill(t)
	more(t, 150, all, subscriptions...)
	// Permits that were allocated before the limit was lowered are at the old rate.
	require.NoError(t, fleet.WithinRate(all.Messages(""), after, lowered, slack*before/after))

	s.limit(100_000)
	complete(t, messages, all, subscriptions...)
	for _, p := range all[1:] {
		p.Stop(t)
	}
	for _, subscription := range subscriptions {
		seen, again := map[string]fleet.Message{}, 0
		for _, m := range all.Messages(subscription) {
			if first, ok := seen[m.ID]; ok {
				again++
				assert.False(t, first.Committed && first.Consumer != killed.ID,
					"%s: message %s was acknowledged and is delivered again", subscription, m.ID)
			}
			seen[m.ID] = m
		}
		t.Logf("%s: %d messages were delivered again", subscription, again)
	}
}
