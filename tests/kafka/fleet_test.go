// Package kafka_test runs groups of real reader processes against a real Kafka, Redis and etcd.
package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

const (
	partitions = 4
	produced   = 14_000 // messages
	limit      = 1000   // a second
	lowered    = 250
)

// A fleet is the reader processes of two groups.
type fleet struct {
	t         *testing.T
	processes []*process
}

// messages are those of all processes, or of a group, in the order they were read.
func (f *fleet) messages(group string) (all []message) {
	for _, p := range f.processes {
		if group == "" || p.group == group {
			p.mu.Lock()
			all = append(all, p.messages...)
			p.mu.Unlock()
		}
	}
	slices.SortFunc(all, func(a, b message) int { return a.read.Compare(b.read) })
	return all
}

// between counts messages read in [from, to).
func between(all []message, from, to time.Time) (n int) {
	for _, m := range all {
		if !m.read.Before(from) && m.read.Before(to) {
			n++
		}
	}
	return n
}

// window is the most that was read in any second within [from, to).
func window(all []message, from, to time.Time) (most int) {
	first := 0
	for i, m := range all {
		if m.read.Before(from) || !m.read.Before(to) {
			first = i + 1
			continue
		}
		for m.read.Sub(all[first].read) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// One limit holds over two groups of four processes, while it is lowered, while a process is killed, and to the end:
// then each group has read each message, and twice only what nobody had committed.
func TestOneLimitOverTwoGroupsOfProcesses(t *testing.T) {
	k := services.Kafka(t)
	brokers := strings.Join(k.Brokers, ",")
	topic := services.Name(t)
	k.CreateTopic(topic, partitions)
	write(t, k.Brokers, topic)

	storeURL := services.EtcdURL(t)
	store, err := throttle.OpenStore(t.Context(), storeURL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	scope := policy.TopicScope(policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: topic})
	set := func(rate int64) time.Time {
		_, err := configstore.Edit(t.Context(), store, func(s configstore.Snapshot) ([]configstore.Change, error) {
			return s.Set(scope, policy.Policy{MessageRate: policy.PerSecond(rate), ThrottleCaughtUp: new(true)}), nil
		})
		require.NoError(t, err)
		return time.Now()
	}
	set(limit)

	env := []string{
		throttle.EnvStore + "=" + storeURL, throttle.EnvLedger + "=" + services.Redis(t), throttle.EnvCluster + "=" + services.Name(t),
	}
	f := &fleet{t: t}
	groups := []string{topic + "-billing", topic + "-audit"}
	for i := range 8 {
		f.processes = append(f.processes, start(t, i, env, brokers, topic, groups[i%2]))
	}
	require.Eventually(t, func() bool { // each of the four partitions has its process
		for _, p := range f.processes {
			p.mu.Lock()
			n := len(p.messages)
			p.mu.Unlock()
			if n < 20 {
				return false
			}
		}
		return true
	}, 120*time.Second, 10*time.Millisecond, "a process got no partition to read from")

	// Ten seconds at the limit, once the last of the joins is over.
	time.Sleep(2 * time.Second)
	from := time.Now()
	time.Sleep(10 * time.Second)
	steady := f.messages("")
	n := between(steady, from, from.Add(10*time.Second))
	most := window(steady, from, from.Add(10*time.Second))
	t.Logf("limit %d/s: %d in 10 s (%.2f %%), any second at most %d", limit, n, float64(n)/limit*10, most)
	require.GreaterOrEqual(t, n, limit*10*90/100)
	require.LessOrEqual(t, n, limit*10*103/100)
	require.LessOrEqual(t, most, limit*125/100, "rate x (d + 0.25 s), whatever else the machine does")
	for _, group := range groups {
		t.Logf("  %s: %d", strings.TrimPrefix(group, topic), between(f.messages(group), from, from.Add(10*time.Second)))
	}

	// The limit changes while everybody runs.
	changed := set(lowered)
	time.Sleep(5 * time.Second)
	after := f.messages("")
	lead := between(after, changed.Add(100*time.Millisecond), changed.Add(350*time.Millisecond))
	n = between(after, changed.Add(100*time.Millisecond), changed.Add(4100*time.Millisecond))
	t.Logf("limit %d/s: %d in the 250 ms that begin 100 ms after the change, %d in 4 s (%.2f %%)", lowered, lead, n, float64(n)/lowered/4*100)
	require.LessOrEqual(t, lead, lowered/2, "100 ms after the change the new limit is in force")
	require.GreaterOrEqual(t, n, lowered*4*90/100)
	require.LessOrEqual(t, n, lowered*425/100)

	// A process dies. Its partition stands still until Kafka notices, its share does not.
	killed := f.processes[0]
	killed.kill(t)
	died := time.Now()
	time.Sleep(6 * time.Second)
	after = f.messages("")
	n = between(after, died.Add(2*time.Second), died.Add(6*time.Second))
	t.Logf("a process killed: %d in 4 s from the third second on (%.2f %%)", n, float64(n)/lowered/4*100)
	require.GreaterOrEqual(t, n, lowered*4*90/100)
	require.LessOrEqual(t, n, lowered*425/100)

	// The rest, quickly.
	set(100_000)
	for _, group := range groups {
		require.Eventually(t, func() bool { return distinct(f.messages(group)) == produced }, 60*time.Second, 50*time.Millisecond, group)
	}
	time.Sleep(time.Second) // for what comes too often
	for _, p := range f.processes[1:] {
		p.stop(t)
	}
	for _, group := range groups {
		f.check(group, killed, died)
	}
}

func distinct(all []message) int {
	seen := map[[2]int64]bool{}
	for _, m := range all {
		seen[[2]int64{int64(m.partition), m.offset}] = true
	}
	return len(seen)
}

// check wants every message once, and twice only what its first reader had not committed when a rebalance began:
// because it was killed, or because it commits every few messages only.
func (f *fleet) check(group string, killed *process, died time.Time) {
	all := f.messages(group)
	require.Equal(f.t, produced, distinct(all), "%s: lost", group)
	before := map[[2]int64]message{}
	byKilled, byRebalance := 0, 0
	for _, m := range all {
		key := [2]int64{int64(m.partition), m.offset}
		first, again := before[key]
		before[key] = m
		if !again {
			continue
		}
		require.False(f.t, first.committed, "%s: partition %d, offset %d was committed and is read again", group, m.partition, m.offset)
		if first.reader == killed.id && m.read.After(died) {
			byKilled++
		} else {
			byRebalance++
		}
	}
	f.t.Logf("%s: %d messages read, %d again that the killed reader had not committed, %d that others had not as a rebalance began",
		group[strings.LastIndex(group, "-")+1:], len(all), byKilled, byRebalance)
	require.LessOrEqual(f.t, byKilled, commitEvery)
}

// write fills the topic.
func write(t *testing.T, brokers []string, topic string) {
	t.Helper()
	w := &kafka.Writer{Addr: kafka.TCP(brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, Balancer: &kafka.RoundRobin{}, BatchTimeout: 5 * time.Millisecond}
	messages := make([]kafka.Message, produced)
	for i := range messages {
		messages[i].Value = fmt.Appendf(nil, "%-100d", i)
	}
	require.NoError(t, w.WriteMessages(context.WithoutCancel(t.Context()), messages...))
	require.NoError(t, w.Close())
}
