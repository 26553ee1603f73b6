package dispatch

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// WaitBuckets are the upper bounds of a Histogram's buckets, from 1 ms to 60 s; the last bucket
// has none.
var WaitBuckets = engine.WaitBuckets

// A Histogram counts waits by their length.
type Histogram struct {
	Count   int64                       `json:"count"`
	Sum     time.Duration               `json:"sum"`     // nanoseconds
	Buckets [len(WaitBuckets) + 1]int64 `json:"buckets"` // not cumulative
}

// Add adds the counts of another Histogram: those of two replicas together.
func (h *Histogram) Add(other Histogram) {
	h.Count += other.Count
	h.Sum += other.Sum
	for i, n := range other.Buckets {
		h.Buckets[i] += n
	}
}

// Since returns what was counted after an earlier state of the same Histogram. If the earlier one
// counted more, as before a restart of its process, everything is later.
func (h Histogram) Since(earlier Histogram) Histogram {
	later := h
	for i, n := range earlier.Buckets {
		later.Buckets[i] -= n
		if later.Buckets[i] < 0 {
			return h
		}
	}
	later.Count -= earlier.Count
	later.Sum = max(0, later.Sum-earlier.Sum)
	return later
}

// Quantile returns the length that a part q of the waits, 0 < q <= 1, does not exceed: the upper
// bound of the bucket with the last of them. It is 0 without waits, and the bound of the last
// bucket that has one for waits beyond it.
func (h Histogram) Quantile(q float64) time.Duration {
	left := q * float64(h.Count)
	for i, n := range h.Buckets[:len(WaitBuckets)] {
		if left -= float64(n); left <= 0 && h.Count > 0 {
			return WaitBuckets[i]
		}
	}
	if h.Count == 0 {
		return 0
	}
	return WaitBuckets[len(WaitBuckets)-1]
}
