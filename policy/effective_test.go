package policy_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

// TestModes: for each scope that may set the rate, and each that may set the mode, the limit's mode
// is that of the most specific scope from the rate's to the limit's own.
func TestModes(t *testing.T) {
	topic := []string{"cluster", "public/default", "public/eu/default", "pattern:orders$", orders.String()}
	for i, rates := range topic {
		for j, modes := range topic {
			for _, mode := range []policy.Mode{policy.Enforce, policy.Shadow} {
				for _, bytes := range []bool{false, true} {
					settings := map[string]policy.Policy{rates: {}, modes: {}}
					p := settings[rates]
					if bytes {
						p.ByteRate = policy.PerSecond(5)
					} else {
						p.MessageRate = policy.PerSecond(5)
					}
					settings[rates] = p
					p = settings[modes]
					p.Mode = mode
					settings[modes] = p
					e := effective(t, settings)
					want := policy.LimitMode{}
					if j >= i {
						want = policy.LimitMode{Mode: mode, By: scope(t, modes)}
					}
					got := e.TopicModes.Messages
					if bytes {
						got = e.TopicModes.Bytes
					}
					what := fmt.Sprintf("rate of %s, mode %s of %s, bytes: %v", rates, mode, modes, bytes)
					assert.Equal(t, want, got, what)
					assert.Equal(t, j >= i && mode == policy.Shadow, got.IsShadow(), what)
					assert.Equal(t, mode, e.Topic.Mode, "of maxInFlight and busy")
					assert.Zero(t, e.SubscriptionModes)
				}
			}
		}
	}
}

// TestModesOfOthers: the mode of an aggregate limit and of a subscription's own limit is set by its
// own scope alone, and touches no other limit.
func TestModesOfOthers(t *testing.T) {
	const billing = "kafka://public/default/orders?subscription=billing"
	shadow, five := policy.Policy{Mode: policy.Shadow}, policy.PerSecond(5)
	together := policy.Policy{MessageRate: five, Aggregate: new(true)}
	all := map[string]policy.Policy{
		"cluster": together, "tenant:public": {MessageRate: five}, "public/default": together,
		orders.String(): {MessageRate: five}, billing: {MessageRate: five},
	}
	for _, setter := range []string{
		"cluster", "tenant:public", "public/default", "public/eu/default", "pattern:orders$", orders.String(), billing,
	} {
		settings := maps.Clone(all)
		p := settings[setter]
		p.Mode = policy.Shadow
		settings[setter] = p
		e := effective(t, settings)
		var got []string
		if e.TopicModes.Messages.IsShadow() {
			got = append(got, orders.String())
		}
		if e.SubscriptionModes.Messages.IsShadow() {
			got = append(got, billing)
		}
		for _, a := range e.Aggregates {
			if a.Modes.Messages.IsShadow() {
				got = append(got, a.Scope.String())
			}
		}
		want := []string{setter}
		switch setter {
		case "public/eu/default": // over the namespace
			want = []string{"public/default"}
		case "pattern:orders$": // less specific than the topic, which sets the rate
			want = nil
		}
		assert.Equal(t, want, got, setter)
	}
	e := effective(t, map[string]policy.Policy{
		"cluster": {MessageRate: five}, "public/default": {MessageRate: five, Aggregate: new(true), Mode: policy.Shadow},
	})
	assert.False(t, e.TopicModes.Messages.IsShadow(), "the preview of an aggregate lifts no rate that topics inherit")
	e = effective(t, map[string]policy.Policy{"public/default": shadow, "public/eu/default": together})
	require.Len(t, e.Aggregates, 1)
	assert.False(t, e.Aggregates[0].Modes.Messages.IsShadow(), "the rate is set below the mode")
}

func effective(t *testing.T, settings map[string]policy.Policy) policy.Effective {
	t.Helper()
	var entries []policy.Entry
	for scope, p := range settings {
		require.NoError(t, p.Validate(entry(t, scope, p).Scope), scope)
		entries = append(entries, entry(t, scope, p))
	}
	set, err := policy.NewSet(entries)
	require.NoError(t, err)
	return set.Resolve("eu", orders, "billing")
}

func scope(t *testing.T, text string) policy.Scope {
	t.Helper()
	s, err := policy.ParseScope(text)
	require.NoError(t, err)
	return s
}
