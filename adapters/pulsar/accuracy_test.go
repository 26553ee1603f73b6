package pulsarthrottle_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// percent returns the events in percent of what a rate gives in the time until the last one.
func percent(rate float64, events []window.Event) float64 {
	return 100 * float64(len(events)) / (rate * events[len(events)-1].At.Seconds())
}

// TestAccuracyOneLimit: three consumers of two subscriptions, from the first message on.
func TestAccuracyOneLimit(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		const rate = 200
		consumers := newBrokerClient(t).three(throttletest.Open(t, throttletest.PerSecond(rate)))
		all := drain(t, 2*rate, time.Now(), consumers...)
		m.Within("used, %", percent(rate, all), 90, 112)
		m.AtMost("any second, %", 100*float64(window.Max(time.Second, all))/rate, 125)
	})
}

func TestAccuracyScopes(t *testing.T) {
	t.Parallel()
	for name, c := range scopeCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				topics, _ := c.drain(t, 80)
				if !c.each {
					m.Within("used of one limit, %", percent(40, merge(topics[0], topics[1])), 80, 125)
					return
				}
				for i, events := range topics {
					m.Within(fmt.Sprintf("used by topic %d of its own limit, %%", i+1), percent(40, events), 80, 125)
				}
			})
		})
	}
}
