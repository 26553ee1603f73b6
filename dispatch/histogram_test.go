package dispatch_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
)

func counted(buckets ...int64) (h dispatch.Histogram) {
	for i, n := range buckets {
		h.Buckets[i] = n
		h.Count += n
	}
	h.Sum = time.Duration(h.Count) * time.Millisecond
	return h
}

// TestHistogramJSON: status records have a histogram, unless it is empty.
func TestHistogramJSON(t *testing.T) {
	s := dispatch.SubscriptionStats{WaitTimes: counted(0, 3, 4)}
	text, err := json.Marshal(s)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"waitTimes":{"count":7,"sum":7000000,"buckets":[0,3,4,0,0,0,0,0,0,0,0]}`)
	var back dispatch.SubscriptionStats
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, s, back)
	text, err = json.Marshal(dispatch.SubscriptionStats{})
	require.NoError(t, err)
	assert.NotContains(t, string(text), "waitTimes")
}

func TestHistogramArithmetic(t *testing.T) {
	all := counted(1, 2)
	all.Add(counted(0, 1, 5))
	assert.Equal(t, counted(1, 3, 5), all)
	assert.Equal(t, counted(0, 1, 5), all.Since(counted(1, 2)))
	restarted := counted(0, 1)
	assert.Equal(t, restarted, restarted.Since(all), "a process that has restarted counts from 0")

	assert.Zero(t, counted().Quantile(0.99))
	h := counted(98, 1, 0, 1)
	for q, want := range map[float64]time.Duration{
		0.5: time.Millisecond, 0.98: time.Millisecond, 0.99: 3 * time.Millisecond, 1: 30 * time.Millisecond,
	} {
		assert.Equal(t, want, h.Quantile(q), "%v", q)
	}
	beyond := counted(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
	assert.Equal(t, time.Minute, beyond.Quantile(0.5), "the last bucket has no bound")
}
