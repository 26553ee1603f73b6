// Package quota computes throughput quotas as FoundationDB does: what a request costs, how much of
// a backend's load comes from each throttling id, and at which rate each id may continue. It reads
// no clock: callers pass times, in seconds.
//
// A throttling id is a tenant group or a tag. Its quota is a cost per second: the reserved part is
// guaranteed, the total is never exceeded. See docs/slowing-down.md.
package quota

import (
	"errors"
	"fmt"
	"math"
)

// Page is the unit of costs, in bytes.
const Page = 4096

// WriteFactor is the cost of a written byte as a multiple of that of a read byte.
const WriteFactor = 4

// ReadCost returns the cost of reading some bytes: whole pages, at least one.
func ReadCost(bytes int64) int64 {
	if bytes > math.MaxInt64-Page {
		return math.MaxInt64 / Page * Page
	}
	return max(1, (bytes+Page-1)/Page) * Page
}

// WriteCost returns the cost of writing or deleting some bytes.
func WriteCost(bytes int64) int64 {
	return WriteFactor * ReadCost(min(bytes, math.MaxInt64/WriteFactor-Page))
}

// A Quota is that of a throttling id, in bytes of cost a second. The zero value allows nothing.
type Quota struct {
	Reserved float64 `json:"reserved"`
	Total    float64 `json:"total"`
}

// Validate returns every fault of a quota.
func (q Quota) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		name  string
		value float64
	}{{"reserved", q.Reserved}, {"total", q.Total}} {
		if !(f.value >= 0 && f.value <= math.MaxInt64) { // also false for NaN
			bad("%s %v: is invalid: want bytes a second, 0 or more", f.name, f.value)
		}
	}
	if q.Reserved > q.Total {
		bad("reserved %v: is above total %v: lower it, or set both",
			q.Reserved, q.Total)
	}
	return errors.Join(errs...)
}

// Target returns the rate at which an id may continue: at least reserved, otherwise the lower of
// desired and limiting. NaN stands for a rate that does not exist.
func Target(reserved, desired, limiting float64) float64 {
	upper := desired
	if math.IsNaN(desired) || limiting < desired {
		upper = limiting
	}
	if math.IsNaN(upper) || reserved > upper {
		return reserved
	}
	return upper
}

// A Smoother follows a value that jumps: it covers 1-1/e of the distance in Folding. Its first
// value applies at once. Set Folding before use.
type Smoother struct {
	Folding float64 // seconds

	total, estimate, at float64
	started             bool
}

// Set sets the value from now on.
func (s *Smoother) Set(total, now float64) {
	if !s.started {
		s.Reset(total, now)
	}
	s.fold(now)
	s.total = total
}

// Reset sets the value and the smoothed value.
func (s *Smoother) Reset(total, now float64) {
	s.total, s.estimate, s.at, s.started = total, total, now, true
}

// Total returns the smoothed value.
func (s *Smoother) Total(now float64) float64 {
	s.fold(now)
	return s.estimate
}

func (s *Smoother) fold(now float64) {
	if dt := now - s.at; dt > 0 {
		if s.estimate != s.total {
			s.estimate += (s.total - s.estimate) * -math.Expm1(-dt/s.Folding)
		}
		s.at = now
	}
}

// A Load tells how near a backend is to its capacity. Its unit is the backend's own, such as bytes
// in a queue, unacknowledged messages, or seconds of age.
type Load struct {
	Queue  float64 `json:"queue"`  // now
	Target float64 `json:"target"` // the queue that the backend should stay under
	Spring float64 `json:"spring"` // range below Target in which it is slowed down gently
}

// ratio returns the part of its present load that the backend can bear, 1/2 or more; ok is false if
// the backend is not near its target.
func (l Load) ratio() (ratio float64, ok bool) {
	inverse := min(2, (l.Queue-l.Target+l.Spring)/l.Spring)
	if !(inverse > 0) {
		return 0, false
	}
	return 1 / inverse, true
}

// Validate returns every fault of a load. The zero Load is valid: it says nothing.
func (l Load) Validate() error {
	if l == (Load{}) {
		return nil
	}
	const positive = math.SmallestNonzeroFloat64
	var errs []error
	for _, f := range []struct {
		name       string
		value, min float64
		want       string
	}{
		{"queue", l.Queue, 0, "0 or more"},
		{"target", l.Target, positive, "more than 0"},
		{"spring", l.Spring, positive, "more than 0"},
	} {
		if !(f.value >= f.min) || math.IsInf(f.value, 1) {
			errs = append(errs, fmt.Errorf("%s %v: is invalid: want %s", f.name, f.value, f.want))
		}
	}
	return errors.Join(errs...)
}
