// Package quota is the arithmetic of throughput quotas, as FoundationDB has them: what a request costs, how much of a backend's
// cost each throttling id has, and at which rate each may go on. It reads no clock: times are given, in seconds.
//
// A throttling id is a tenant group or a tag. Its quota is a cost a second: the reserved one it always has, the total
// one it never exceeds. See docs/slowing-down.md.
package quota

import (
	"errors"
	"fmt"
	"math"
)

// Page is what costs are counted in, bytes.
const Page = 4096

// WriteFactor is how much more a written byte costs than a read one.
const WriteFactor = 4

// ReadCost is the cost of reading so many bytes: whole pages, and one at least.
func ReadCost(bytes int64) int64 {
	if bytes > math.MaxInt64-Page {
		return math.MaxInt64 / Page * Page
	}
	return max(1, (bytes+Page-1)/Page) * Page
}

// WriteCost is the cost of writing so many bytes, those that are deleted included.
func WriteCost(bytes int64) int64 {
	return WriteFactor * ReadCost(min(bytes, math.MaxInt64/WriteFactor-Page))
}

// A Quota is a throttling id's, in cost a second. The zero value allows nothing.
type Quota struct {
	Reserved float64 `json:"reserved"`
	Total    float64 `json:"total"`
}

// Validate returns all that is wrong with a quota.
func (q Quota) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value float64
	}{{"reserved_throughput", q.Reserved}, {"total_throughput", q.Total}} {
		if !(f.value >= 0 && f.value <= math.MaxInt64) { // NaN is neither
			errs = append(errs, fmt.Errorf("%s %v: is no number of bytes a second from 0 on", f.name, f.value))
		}
	}
	if q.Reserved > q.Total {
		errs = append(errs, fmt.Errorf("reserved_throughput %v: is above total_throughput %v: lower it, or set both", q.Reserved, q.Total))
	}
	return errors.Join(errs...)
}

// Target is the rate at which an id may go on: no less than reserved, no more than desired, and what limits it between them. NaN is what
// there is none of.
func Target(reserved, desired, limiting float64) float64 {
	least := desired
	if math.IsNaN(desired) || limiting < desired {
		least = limiting
	}
	if math.IsNaN(least) || reserved > least {
		return reserved
	}
	return least
}

// A Smoother follows a value that jumps: 1-1/e of the way in Folding. The zero value but for Folding has the first value at once.
type Smoother struct {
	Folding float64 // seconds

	total, estimate, at float64
	began               bool
}

// Set says that the value is total from now on.
func (s *Smoother) Set(total, now float64) {
	if !s.began {
		s.Reset(total, now)
	}
	s.fold(now)
	s.total = total
}

// Reset says that the value is, and was, total.
func (s *Smoother) Reset(total, now float64) {
	s.total, s.estimate, s.at, s.began = total, total, now, true
}

// Total is the smoothed value.
func (s *Smoother) Total(now float64) float64 {
	s.fold(now)
	return s.estimate
}

// Rate is how fast the smoothed value changes, a second.
func (s *Smoother) Rate(now float64) float64 {
	s.fold(now)
	return (s.total - s.estimate) / s.Folding
}

func (s *Smoother) fold(now float64) {
	if dt := now - s.at; dt > 0 {
		if s.estimate != s.total {
			s.estimate += (s.total - s.estimate) * -math.Expm1(-dt/s.Folding)
		}
		s.at = now
	}
}

// A Load is how near a backend is to what it can bear: bytes in its queue, messages behind or not acknowledged, seconds of age.
type Load struct {
	Queue  float64 `json:"queue"`  // now
	Target float64 `json:"target"` // what it is to stay under
	Spring float64 `json:"spring"` // before Target, in which it is slowed down gently
}

// Ratio is how much of its present load the backend can bear, 1/2 to any number; ok is false if it is not near its target.
func (l Load) Ratio() (ratio float64, ok bool) {
	inverse := min(2, (l.Queue-l.Target+l.Spring)/l.Spring)
	if !(inverse > 0) {
		return 0, false
	}
	return 1 / inverse, true
}

// Validate returns all that is wrong with a load.
// The zero Load says nothing, and is right.
func (l Load) Validate() error {
	if l == (Load{}) {
		return nil
	}
	var errs []error
	for _, f := range []struct {
		name  string
		value float64
		least float64
	}{{"queue", l.Queue, 0}, {"target", l.Target, math.SmallestNonzeroFloat64}, {"spring", l.Spring, math.SmallestNonzeroFloat64}} {
		if !(f.value >= f.least) || math.IsInf(f.value, 1) {
			errs = append(errs, fmt.Errorf("%s %v: is no number above 0", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}
