package pulsarthrottle_test

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"

	pulsarthrottle "github.com/dispatchthrottle/throttle/adapters/pulsar"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A scopeCase is a limit of 40 messages a second.
type scopeCase struct {
	scope  func(topic string) string
	policy policy.Policy
	each   bool // whether each topic has its own limit
}

func scopeCases() map[string]scopeCase {
	rate := throttletest.PerSecond(40)
	aggregate := throttletest.PerSecond(40)
	aggregate.Aggregate = new(true)
	tenant := policy.Policy{MessageRate: aggregate.MessageRate, Aggregate: aggregate.Aggregate}
	// The messages have 10 bytes each.
	bytes := policy.Policy{ByteRate: policy.PerSecond(400), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
	return map[string]scopeCase{
		"cluster":   {func(string) string { return "cluster" }, rate, true},
		"namespace": {func(string) string { return "public/default" }, rate, true},
		"pattern": {func(topic string) string {
			return "pattern:" + topic[:strings.LastIndex(topic, "-")] + "-.*"
		}, rate, true},
		"topics":       {func(topic string) string { return topic }, rate, true},
		"subscription": {func(topic string) string { return topic + "?subscription=billing" }, rate, true},
		"bytes":        {func(topic string) string { return topic }, bytes, true},
		"aggregate":    {func(string) string { return "public/default" }, aggregate, false},
		"tenant":       {func(string) string { return "tenant:public" }, tenant, false},
	}
}

// drain reads n messages of each of two topics, and returns when they came, and by how many limits.
func (c scopeCase) drain(t *testing.T, n int) (topics [2][]window.Event, limits int) {
	t.Helper()
	w := newBrokerClient(t)
	lim := throttletest.Open(t, policy.Policy{})
	var consumers []*pulsarthrottle.Consumer
	for range topics {
		topic := w.topic(2)
		w.subscribe(topic, "billing")
		w.produceFrom(topic, 1_000_000_000, 150, 1) // ten digits
		lim.Add(c.scope(topic), c.policy)
		consumers = append(consumers, w.open(pulsar.ConsumerOptions{Topic: topic}, lim))
	}
	var readers sync.WaitGroup
	begin := time.Now() // of both, since their messages may be merged
	for i := range topics {
		readers.Go(func() { topics[i] = drain(t, n, begin, consumers[i]) })
	}
	readers.Wait()
	keys := map[string]bool{}
	for _, s := range lim.Stats().Subscriptions {
		for _, l := range s.Limits {
			keys[l.Key] = true
		}
	}
	return topics, len(keys)
}

// A limit of every scope applies to Pulsar's topics; those of a namespace and a tenant apply to
// all their topics together.
func TestScopes(t *testing.T) {
	t.Parallel()
	for name, c := range scopeCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topics, limits := c.drain(t, 80)
			if c.each {
				assert.Equal(t, 2, limits)
			} else {
				assert.Equal(t, 1, limits)
				topics = [2][]window.Event{merge(topics[0], topics[1])}
			}
			for _, events := range topics {
				assert.NoError(t, window.WithinRate(40, 250*time.Millisecond, 1, events))
			}
		})
	}
}

func merge(a, b []window.Event) []window.Event {
	return slices.SortedFunc(slices.Values(slices.Concat(a, b)),
		func(a, b window.Event) int { return cmp.Compare(a.At, b.At) })
}
