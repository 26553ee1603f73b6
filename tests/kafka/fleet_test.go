// Package kafka_test runs consumer groups of real processes on a real Kafka, Redis and etcd.
package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

const (
	partitions = 4
	produced   = 14_000 // messages
	limit      = 1000   // a second
	lowered    = 250
)

// TestOneLimitOverTwoConsumerGroups: one limit holds over two consumer groups of four processes
// each, also while it is lowered and while a process is killed. In the end, each consumer group has
// read every message, and only uncommitted ones twice.
func TestOneLimitOverTwoConsumerGroups(t *testing.T) {
	k := services.Kafka(t)
	brokers := strings.Join(k.Brokers, ",")
	topic := services.Name(t)
	k.CreateTopic(topic, partitions)
	write(t, k.Brokers, topic)

	policiesURL := services.EtcdURL(t)
	store, err := throttle.OpenPolicies(t.Context(), policiesURL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	scope := policy.TopicScope(policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: topic})
	set := func(rate int64) time.Time {
		_, err := configstore.Edit(t.Context(), store, func(s configstore.Snapshot) ([]configstore.Change, error) {
			return s.Set(scope, policy.Policy{
				MessageRate: policy.PerSecond(rate), CaughtUp: policy.CaughtUp{Throttle: new(true)},
			}), nil
		})
		require.NoError(t, err)
		return time.Now()
	}
	set(limit)

	env := []string{
		throttle.EnvPolicies + "=" + policiesURL,
		throttle.EnvPermits + "=" + services.Redis(t),
		throttle.EnvCluster + "=" + services.Name(t),
	}
	var consumers fleet.Fleet
	groups := []string{topic + "-billing", topic + "-audit"}
	for i := range 8 {
		group := groups[i%2]
		args := consumerEnv + "=" + strings.Join([]string{brokers, topic, group}, " ")
		consumers = append(consumers, fleet.Start(t, i, group, append(env, args)))
	}
	require.Eventually(t, func() bool { // each process has one of the four partitions
		for _, p := range consumers {
			if len(p.Messages()) < 20 {
				return false
			}
		}
		return true
	}, 120*time.Second, 10*time.Millisecond, "a process got no partition to read from")

	// Five seconds at the limit, after the last process has joined.
	time.Sleep(2 * time.Second)
	loosely.Hold(t, func(loose assert.TestingT) {
		from := time.Now()
		time.Sleep(5 * time.Second)
		steady := consumers.Messages("")
		n := fleet.Between(steady, from, from.Add(5*time.Second))
		highest := fleet.Window(steady, from, from.Add(5*time.Second))
		t.Logf("limit %d/s: %d in 5 s (%.2f %%), at most %d in any second", limit, n, float64(n)/limit/5*100, highest)
		assert.GreaterOrEqual(loose, n, limit*5*90/100)
		require.LessOrEqual(t, n, limit*525/100, "rate x (d + 0.25 s), also on a busy machine")
		require.LessOrEqual(t, highest, limit*125/100, "rate x (1 s + 0.25 s)")
		for _, group := range groups {
			n := fleet.Between(consumers.Messages(group), from, from.Add(5*time.Second))
			t.Logf("  %s: %d", strings.TrimPrefix(group, topic), n)
		}
	})

	// The limit changes while all processes run.
	loosely.Hold(t, func(loose assert.TestingT) {
		set(limit)
		time.Sleep(time.Second)
		changed := set(lowered)
		time.Sleep(3100 * time.Millisecond)
		after := consumers.Messages("")
		lead := fleet.Between(after, changed.Add(100*time.Millisecond), changed.Add(350*time.Millisecond))
		n := fleet.Between(after, changed.Add(100*time.Millisecond), changed.Add(3100*time.Millisecond))
		t.Logf("limit %d/s: %d between 100 ms and 350 ms after the change, %d in 3 s (%.2f %%)",
			lowered, lead, n, float64(n)/lowered/3*100)
		assert.LessOrEqual(loose, lead, lowered/2, "100 ms after the change the new limit is in force")
		assert.LessOrEqual(loose, n, lowered*325/100, "rate x (3 s + 0.25 s)")
		late := fleet.Between(after, changed.Add(time.Second), changed.Add(3100*time.Millisecond))
		require.LessOrEqual(t, late, lowered*235/100, "rate x (2.1 s + 0.25 s), a second after the change")
		assert.GreaterOrEqual(loose, n, lowered*3*90/100)
	})

	// A process is killed. Its partition is not read until Kafka notices; its share is used by
	// others.
	killed := consumers[0]
	killed.Kill(t)
	died := time.Now()
	time.Sleep(2 * time.Second)
	loosely.Hold(t, func(loose assert.TestingT) {
		from := time.Now()
		time.Sleep(3 * time.Second)
		n := fleet.Between(consumers.Messages(""), from, from.Add(3*time.Second))
		t.Logf("2 s after a process was killed: %d in 3 s (%.2f %%)", n, float64(n)/lowered/3*100)
		assert.GreaterOrEqual(loose, n, lowered*3*90/100)
		require.LessOrEqual(t, n, lowered*325/100)
	})

	// The rest is read quickly.
	set(100_000)
	for _, group := range groups {
		require.Eventually(t, func() bool {
			return fleet.Distinct(consumers.Messages(group)) == produced
		}, 60*time.Second, 50*time.Millisecond, group)
	}
	time.Sleep(time.Second) // for repeated messages
	for _, p := range consumers[1:] {
		p.Stop(t)
	}
	for _, group := range groups {
		check(t, group, consumers.Messages(group), killed, died)
	}
}

// check requires every message once. It allows a second time only if the first consumer had not
// committed the message when a rebalance started: it was killed, or it commits every few messages.
func check(t *testing.T, group string, all []fleet.Message, killed *fleet.Process, died time.Time) {
	require.Equal(t, produced, fleet.Distinct(all), "%s: lost", group)
	before := map[string]fleet.Message{}
	byKilled, byRebalance := 0, 0
	for _, m := range all {
		first, again := before[m.ID]
		before[m.ID] = m
		if !again {
			continue
		}
		require.False(t, first.Committed, "%s: partition/offset %s was committed and is read again", group, m.ID)
		if first.Consumer == killed.ID && m.Read.After(died) {
			byKilled++
		} else {
			byRebalance++
		}
	}
	t.Logf("%s: %d messages read; read again: %d uncommitted by the killed process, %d by others in a rebalance",
		group[strings.LastIndex(group, "-")+1:], len(all), byKilled, byRebalance)
	require.LessOrEqual(t, byKilled, commitEvery)
}

// write fills the topic.
func write(t *testing.T, brokers []string, topic string) {
	t.Helper()
	w := &kafka.Writer{
		Addr: kafka.TCP(brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.RoundRobin{}, BatchTimeout: 5 * time.Millisecond,
	}
	messages := make([]kafka.Message, produced)
	for i := range messages {
		messages[i].Value = fmt.Appendf(nil, "%-100d", i)
	}
	require.NoError(t, w.WriteMessages(context.WithoutCancel(t.Context()), messages...))
	require.NoError(t, w.Close())
}
