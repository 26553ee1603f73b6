package simulate_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/simulate"
	"github.com/dispatchthrottle/throttle/policy"
)

func limited(rate int64) policy.Policy { return policy.Policy{MessageRate: policy.PerSecond(rate)} }

// TestSimulatedAllocation: published allocations, scaled to hundreds a second; within 2 %, from
// the third second on.
func TestSimulatedAllocation(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet takes long with the race detector")
	}
	t.Parallel()
	const endless, seconds = math.MaxFloat64, 403
	for name, c := range map[string]struct {
		capacity                         int64
		demands, weights, reserved, want []float64
	}{
		"W1": {1000, []float64{200, 260, 400, 500}, nil, nil, []float64{200, 260, 270, 270}},
		"W2": {1600, []float64{400, 200, 1000, 400}, []float64{2.5, 4, .5, 1}, nil,
			[]float64{400, 200, 600, 400}},
		"W3": {400, []float64{1000, 500, 110, 30}, nil, nil, []float64{130, 130, 110, 30}},
		"W4": {450, []float64{100, 110, 300, 200}, []float64{2, 1, 1, .5}, nil,
			[]float64{100, 110, 160, 80}},
		"W7":                 {3000, []float64{2000, 500, 500, 1000}, nil, nil, []float64{1000, 500, 500, 1000}},
		"W8":                 {1000, []float64{100, 200, 300}, nil, nil, []float64{100, 200, 300}},
		"V9, reserved first": {1000, []float64{endless, endless}, nil, []float64{400, 0}, []float64{700, 300}},
		"V10": {1000, []float64{endless, endless, endless}, nil, []float64{600, 0, 0},
			[]float64{733.33, 133.33, 133.33}},
		"W11, idle lends": {1000, []float64{100, endless, endless}, nil, []float64{600, 0, 0},
			[]float64{100, 450, 450}},
		"W12, reserved scaled": {1000, []float64{endless, endless, endless}, nil, []float64{800, 400, 400},
			[]float64{500, 250, 250}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := simulate.Schedule{Policy: limited(c.capacity), Seed: 1}
			for i, d := range c.demands {
				r := simulate.Consumers{Subscription: fmt.Sprint(i), Rate: d}
				if d == endless {
					r.Rate = 0
				}
				if c.weights != nil {
					r.Weight = c.weights[i]
				}
				if c.reserved != nil {
					r.Reserved = c.reserved[i]
				}
				s.Consumers = append(s.Consumers, r)
			}
			require.NoError(t, s.Validate())
			got := make([]float64, len(c.demands))
			for second := range seconds {
				now := s.Second()
				for i := range got {
					if second >= 3 {
						got[i] += float64(now.Messages[fmt.Sprint(i)]) / (seconds - 3)
					}
				}
			}
			for i, want := range c.want {
				assert.InEpsilon(t, want, got[i], 0.02, "consumer %d: %v, not %v", i, got, c.want)
			}
		})
	}
}

// TestSimulatedChange: a changed limit holds in the next second, and the same seed gives the same
// run.
func TestSimulatedChange(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (messages []int64) {
		s := simulate.Schedule{
			Policy: limited(1000), Seed: seed,
			Consumers: []simulate.Consumers{
				{Subscription: "a", Replicas: 4},
				{Subscription: "b", Rate: 100, From: 2, Until: 4},
			},
		}
		for second := range 8 {
			if second == 5 {
				s.Change(limited(300))
			}
			now := s.Second()
			assert.Equal(t, second+1, now.Time)
			assert.Less(t, now.Requests, 200)
			messages = append(messages, now.Messages["a"]+now.Messages["b"])
		}
		return messages
	}
	first := run(1)
	for second, want := range []float64{1000, 1000, 1000, 1000, 1000, 300, 300, 300} {
		assert.InEpsilon(t, want, first[second], 0.1, "%v", first)
	}
	assert.Equal(t, first, run(1))
	assert.NotEqual(t, first, run(2))
}

// TestSimulationFaults: all at once.
func TestSimulationFaults(t *testing.T) {
	t.Parallel()
	s := simulate.Schedule{
		Policy:    policy.Policy{Sharing: policy.Sharing{Mode: policy.Strict}},
		Consumers: []simulate.Consumers{{Replicas: -1, Weight: math.NaN(), From: 5, Until: 4}},
	}
	err := s.Validate()
	for _, want := range []string{
		"policy.messageRate: is not set", `policy.sharing.mode "strict": is not simulated: want fair`,
		"consumers[0].subscription: is empty",
		"consumers[0].replicas -1: out of range: want 1 to 1000",
		"consumers[0].weight NaN: out of range: want 0 to 1000000",
		"consumers[0].until 4: is not after from 5",
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.ErrorContains(t, (&simulate.Schedule{Policy: limited(1)}).Validate(), "consumers: are not set")
}
