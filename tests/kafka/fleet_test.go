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
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const (
	partitions = 4
	produced   = 14_000 // messages
	limit      = 1000   // a second
	lowered    = 250

	slack = 250 * time.Millisecond // see package window
)

// A scene is a topic with its policy, and consumer groups of processes.
type scene struct {
	t         testing.TB
	topic     policy.Topic
	store     configstore.Store
	permits   string // URL
	cluster   string
	env       []string // of its processes
	brokers   string
	groups    []group
	consumers fleet.Fleet
	begin     time.Time // when they were started
}

// A group is a consumer group whose processes use one client.
type group struct{ name, client string }

// newScene has a consumer group of each client, of a number of processes, and a limit.
func newScene(t *testing.T, permits string, rate int64, processes int, clients ...string) *scene {
	t.Helper()
	k := services.Kafka(t)
	name := services.Name(t)
	k.CreateTopic(name, partitions)
	write(t, k.Brokers, name)
	policies := services.EtcdURL(t)
	store, err := throttle.OpenPolicies(t.Context(), policies)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s := &scene{
		t: t, store: store, permits: permits, cluster: services.Name(t),
		topic:   policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: name},
		brokers: strings.Join(k.Brokers, ","),
	}
	s.set(rate)
	s.env = []string{
		throttle.EnvPolicies + "=" + policies, throttle.EnvPermits + "=" + s.permits, throttle.EnvCluster + "=" + s.cluster,
	}
	for i, client := range clients {
		s.groups = append(s.groups, group{name + []string{"-billing", "-audit"}[i], client})
	}
	s.begin = time.Now()
	for range processes {
		for _, g := range s.groups {
			s.start(g)
		}
	}
	return s
}

// start starts one more process of a group.
func (s *scene) start(g group, more ...string) *fleet.Process {
	s.t.Helper()
	args := append([]string{s.brokers, s.topic.Name, g.name, g.client}, more...)
	p := fleet.Start(s.t, len(s.consumers), g.name, append(s.env, consumerEnv+"="+strings.Join(args, " ")))
	s.consumers = append(s.consumers, p)
	return p
}

// set sets the limit, and returns when the policy store has it.
func (s *scene) set(rate int64) time.Time {
	s.t.Helper()
	_, err := configstore.Edit(s.t.Context(), s.store, configstore.By{}, func(now configstore.Snapshot) ([]configstore.Change, error) {
		return now.Set(policy.TopicScope(s.topic), policy.Policy{
			MessageRate: policy.PerSecond(rate), CaughtUp: policy.CaughtUp{Throttle: new(true)},
		}), nil
	})
	require.NoError(s.t, err)
	return time.Now()
}

// shared waits until the permits of the topic are allocated at a rate.
func (s *scene) shared(rate float64) (since time.Time) {
	s.t.Helper()
	store, err := throttle.OpenPermits(s.permits)
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, store.Close()) }()
	key := permits.LimitKey(s.cluster, policy.TopicScope(s.topic), false)
	require.Eventually(s.t, func() bool {
		state, _, err := store.State(s.t.Context(), key)
		return err == nil && state.Rate == rate
	}, throttletest.Patience, time.Millisecond)
	return time.Now()
}

// each waits until each process has read n messages: each has one of the four partitions.
func (s *scene) each(n int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		for _, p := range s.consumers {
			if len(p.Messages()) < n {
				return false
			}
		}
		return true
	}, throttletest.Patience, 10*time.Millisecond, "a process got no partition to read from")
}

// TestOneLimit: one limit holds over two consumer groups of four processes each, also when it is
// lowered and when a process is killed. In the end, each consumer group has read every message, and
// only uncommitted ones twice.
func TestOneLimit(t *testing.T) {
	s := newScene(t, services.Patient(services.Redis(t)), limit, 4, kafkaGo, kafkaGo)
	s.each(900) // at twice the limit, 900 would exceed it, though the first come seconds later
	s.set(lowered)
	changed := s.shared(lowered)
	require.NoError(t, fleet.WithinRate(s.consumers.Messages(""), limit, s.begin, slack))

	// Its partition is not read until Kafka notices that it is gone; its share is used by others.
	killed := s.consumers[0]
	killed.Kill(t)
	died := time.Now()
	n := len(s.consumers.Messages(""))
	require.Eventually(t, func() bool { return len(s.consumers.Messages("")) > n+4*lowered }, throttletest.Patience, 10*time.Millisecond)
	// Permits that were allocated before the limit was lowered are at the old rate.
	require.NoError(t, fleet.WithinRate(s.consumers.Messages(""), lowered, changed, slack*limit/lowered))

	s.set(100_000)
	for _, group := range s.groups {
		require.Eventually(t, func() bool {
			return fleet.Distinct(s.consumers.Messages(group.name)) == produced
		}, throttletest.Patience, 50*time.Millisecond, group.name)
	}
	for _, p := range s.consumers[1:] {
		p.Stop(t) // which reads the rest of what it has printed
	}
	for _, group := range s.groups {
		check(t, group.name, s.consumers.Messages(group.name), killed, died, nil)
	}
}

// check requires every message once. It allows a second time only if the first consumer had not
// committed the message when a rebalance started: it was killed, or it commits every few messages.
// Those are left out that a consumer read as stale, which did not know yet that it had lost the
// partition.
func check(
	t *testing.T, group string, all []fleet.Message, killed *fleet.Process, died time.Time, stale func(fleet.Message) bool,
) {
	t.Helper()
	require.Equal(t, produced, fleet.Distinct(all), "%s: lost", group)
	before := map[string]fleet.Message{}
	byKilled, byRebalance := 0, 0
	for _, m := range all {
		if stale != nil && stale(m) {
			continue
		}
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
