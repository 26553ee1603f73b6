package pulsarthrottle_test

import (
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A limit of every scope applies to Pulsar's topics; those of a namespace and a tenant apply to
// all their topics together.
func TestScopes(t *testing.T) {
	t.Parallel()
	rate := perSecond(40)
	aggregate := perSecond(40)
	aggregate.Aggregate = new(true)
	tenant := policy.Policy{MessageRate: aggregate.MessageRate, Aggregate: aggregate.Aggregate}
	// The messages have 10 bytes each.
	bytes := policy.Policy{ByteRate: policy.PerSecond(400), CaughtUp: policy.CaughtUp{Throttle: new(true)}}
	pattern := "pattern:persistent://public/default/TestScopes-.*"
	for name, c := range map[string]struct {
		scope  func(topic string) string
		policy policy.Policy
		each   bool // whether each topic has its own limit
	}{
		"cluster":      {func(string) string { return "cluster" }, rate, true},
		"namespace":    {func(string) string { return "public/default" }, rate, true},
		"pattern":      {func(string) string { return pattern }, rate, true},
		"topics":       {func(topic string) string { return topic }, rate, true},
		"subscription": {func(topic string) string { return topic + "?subscription=billing" }, rate, true},
		"bytes":        {func(topic string) string { return topic }, bytes, true},
		"aggregate":    {func(string) string { return "public/default" }, aggregate, false},
		"tenant":       {func(string) string { return "tenant:public" }, tenant, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loosely.Hold(t, func(loose assert.TestingT) {
				w := newBrokerClient(t)
				lim := throttletest.Open(t, policy.Policy{})
				var consumers []pulsar.Consumer
				for range 2 {
					topic := w.topic(2)
					w.subscribe(topic, "billing")
					w.produceFrom(topic, 1_000_000_000, 150, 1) // ten digits
					lim.Add(c.scope(topic), c.policy)
					consumers = append(consumers, w.open(pulsar.ConsumerOptions{Topic: topic}, lim))
				}
				got := make(chan int, len(consumers))
				for _, consumer := range consumers {
					go func() { got <- len(drainUntil(t, consumer, 2*time.Second, 200)) }()
				}
				total := <-got + <-got
				want := 80
				if c.each {
					want = 160
				}
				assert.LessOrEqual(t, total, want*125/100+2)
				assert.GreaterOrEqual(loose, total, want*80/100)
			})
		})
	}
}
