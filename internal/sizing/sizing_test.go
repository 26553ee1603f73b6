package sizing_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/internal/sizing"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestRequests has the requests that the sharing modes make; TestSize of tests/scale measures them.
func TestRequests(t *testing.T) {
	for _, c := range []struct {
		what string
		f    sizing.Fleet
		want float64
	}{
		{"a batch a round each", sizing.Fleet{Limits: 3, Replicas: 8, Subscriptions: 1, Rate: 1000}, 240},
		{"alone, two", sizing.Fleet{Limits: 1, Replicas: 1, Subscriptions: 1, Rate: 1000}, 20},
		{"alone and slow, one a message", sizing.Fleet{Limits: 1, Replicas: 1, Subscriptions: 1, Rate: 10}, 10},
		{"light shares, one a message", sizing.Fleet{Limits: 2, Replicas: 1000, Subscriptions: 1, Rate: 100}, 200},
		{"subscriptions", sizing.Fleet{Limits: 1, Replicas: 8, Subscriptions: 3, Rate: 1e6}, 240},
		{"a slot each", sizing.Fleet{Limits: 1, Replicas: 65, Subscriptions: 1, Rate: 20, Sharing: policy.Strict}, 20},
		{"all others ask again", sizing.Fleet{Limits: 1, Replicas: 200, Subscriptions: 1, Rate: 20, Sharing: policy.Strict}, 20 * 136},
		{"heartbeats", sizing.Fleet{Limits: 2, Replicas: 5, Subscriptions: 1, Rate: 1e6, Sharing: policy.Split}, 40},
	} {
		c.f.Round = 0.1
		if c.f.Sharing == "" {
			c.f.Sharing = policy.Fair
		}
		assert.InDelta(t, c.want, c.f.Needs().Requests, c.want/1e6, c.what)
	}
}

// TestAdvice: advice comes where a bound is passed, and names what to change.
func TestAdvice(t *testing.T) {
	small := sizing.Fleet{Limits: 10, Replicas: 1000, Subscriptions: 1, Rate: 100, Round: 0.1, Sharing: policy.Fair}
	assert.Empty(t, small.Advice(small.Needs()))
	for want, change := range map[string]func(*sizing.Fleet){
		"set a longer round":             func(f *sizing.Fleet) { f.Rate, f.Limits, f.Replicas = 1e6, 200, 100 },
		"raise its maxclients":           func(f *sizing.Fleet) { f.Replicas = 6000 },
		"of which status records are 76": func(f *sizing.Fleet) { f.Limits, f.Rate = 200, 1 },
		"spread the limits":              func(f *sizing.Fleet) { f.Limits, f.Replicas, f.Rate = 2000, 1, 10_000 },
		"set sharing.wait=queue":         func(f *sizing.Fleet) { f.Sharing = policy.Strict },
		"set sharing.replicas":           func(f *sizing.Fleet) { f.Sharing = policy.Split },
		"use sharing.mode fair":          func(f *sizing.Fleet) { f.Sharing = policy.Groups },
	} {
		f := small
		change(&f)
		assert.Contains(t, join(f.Advice(f.Needs())), want)
	}
}

func join(advice []string) (all string) {
	for _, a := range advice {
		all += a + "\n"
	}
	return all
}
