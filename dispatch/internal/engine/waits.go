package engine

import (
	"slices"
	"time"
)

// Why callers wait, beside the reasons of limits; see resolve.Limit.
const (
	ReasonInFlight    = "messages in flight"
	ReasonPaused      = "paused"
	ReasonUnavailable = "permit store unavailable"
	ReasonNoGroup     = "in none of the limit's worker groups"
)

// WaitBuckets are the upper bounds of a Histogram's buckets; the last bucket has none.
var WaitBuckets = [...]time.Duration{
	time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond,
	100 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second,
	10 * time.Second, 60 * time.Second,
}

// A Histogram counts waits by their length.
type Histogram struct {
	Count   int64
	Sum     time.Duration
	Buckets [len(WaitBuckets) + 1]int64 // not cumulative
}

// Waits are how many callers had to wait for one reason.
type Waits struct {
	Reason string
	N      int64
}

// waitStats count the callers of a lane that had to wait and were served, by why they had to when
// they came. The queue's lock guards them.
type waitStats struct {
	reasons []Waits // a few
	times   Histogram
}

func (s *waitStats) add(d time.Duration, reason string) {
	i, _ := slices.BinarySearch(WaitBuckets[:], d)
	s.times.Count++
	s.times.Sum += d
	s.times.Buckets[i]++
	for i := range s.reasons {
		if s.reasons[i].Reason == reason {
			s.reasons[i].N++
			return
		}
	}
	s.reasons = append(s.reasons, Waits{reason, 1})
}
