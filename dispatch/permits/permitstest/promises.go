package permitstest

import (
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
)

// intervals yields, for each event and each length, the permits of the interval that ends with
// it. In real time, where events are late, it is the one since the start, whatever the lengths.
func (r *run) intervals(lengths ...time.Duration) iter.Seq2[time.Duration, window.Event] {
	return func(yield func(time.Duration, window.Event) bool) {
		events := r.dispatched.Events()
		if r.backend.RealTime {
			for e := range window.Sums(math.MaxInt64, events) {
				if !yield(e.At, e) {
					return
				}
			}
			return
		}
		for _, d := range lengths {
			for e := range window.Sums(d, events) {
				if !yield(d, e) {
					return
				}
			}
		}
	}
}

// neverOver: no interval has more than rate x (d + 0.25 s).
func (r *run) neverOver() string {
	const ms = time.Millisecond
	for d, e := range r.intervals(100*ms, 500*ms, time.Second, 3*time.Second) {
		if bound := r.allowed(e.At-d, e.At); float64(e.N) > bound {
			return fmt.Sprintf("%d dispatched in the %v before %v, at most %.0f allowed", e.N, d,
				e.At, bound)
		}
	}
	return ""
}

// allowed is how many permits may be used in [from, to): by the rates in force, a quarter of a
// second of slack, and for each lost state by what replicas held, which after a cut of the rate
// lasts for seconds.
func (r *run) allowed(from, to time.Duration) float64 {
	sum, lately, before := 0.0, int64(0), int64(0)
	for i, p := range r.periods {
		end := to
		if i+1 < len(r.periods) {
			end = min(to, r.periods[i+1].from)
		}
		if begin := max(from, p.from); begin < end {
			sum += float64(p.rate) * (end - begin).Seconds()
		}
		if p.from < to && end+2*time.Second > from { // allocated at that rate
			lately = max(lately, p.rate)
		}
		if p.from < to && end+5*time.Second > from {
			before = max(before, p.rate)
		}
	}
	lost, lostBefore := 0, 0
	for _, at := range r.losses {
		switch {
		case from <= at && at < to:
			lost++
		case from-5*time.Second <= at && at < from:
			lostBefore = 1
		}
	}
	held := 0.2 * float64(before) * float64(max(lost, lostBefore))
	light := 3 * float64(len(r.all)) // the lightest shares hold a permit in each batch
	return sum + 0.25*float64(lately) + held + light
}

// neverNear: no two permits are closer than the period, but for slow replies.
func (r *run) neverNear() string {
	if r.backend.RealTime {
		if err := window.WithinRate(float64(r.rate), 250*time.Millisecond, 1, r.dispatched.Events()); err != nil {
			return err.Error()
		}
		return ""
	}
	minGap := time.Second/time.Duration(r.rate) - 5*time.Millisecond
	events := r.dispatched.Events()
	for i := 1; i < len(events); i++ {
		if gap := events[i].At - events[i-1].At; gap < minGap {
			return fmt.Sprintf("two permits %v apart, at %v", gap, events[i].At)
		}
	}
	return ""
}

// neverMore: a split limit grants rate x d and a permit for each replica; one divided over groups
// the permits of 0.8 s more, which may have opened, or been drawn, before.
func (r *run) neverMore() string {
	slack := float64(len(r.all))
	if r.mode.policy.Sharing.Mode == policy.Groups {
		slack += 0.8*float64(r.rate) + 4 // each of two groups keeps one permit, and rounds up
	}
	if r.backend.RealTime {
		slack += 0.25 * float64(r.rate)
	}
	for d, e := range r.intervals(time.Second, 3*time.Second) {
		if bound := d.Seconds()*float64(r.rate) + slack; float64(e.N) > bound {
			return fmt.Sprintf("%d dispatched in the %v before %v, at most %.0f allowed", e.N, d,
				e.At, bound)
		}
	}
	return ""
}
