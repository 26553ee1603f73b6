// Package window records events, such as dispatched messages, and counts them in sliding
// intervals, to hold a limit in each of them.
package window

import (
	"fmt"
	"iter"
	"time"
)

// An Event is N messages, or bytes, at a time since the start of a test.
type Event struct {
	At     time.Duration
	N      int
	Source int // such as a replica
}

// Times returns one event of one message for each time; they are relative to the first.
func Times(at []time.Time) []Event {
	events := make([]Event, len(at))
	for i, t := range at {
		events[i] = Event{At: t.Sub(at[0]), N: 1}
	}
	return events
}

// Max returns the largest sum of events in any interval of length d; the events are sorted by time.
// An interval does not include its start: events that are d apart are never both in it.
func Max(d time.Duration, events []Event) (sum int) {
	for e := range Sums(d, events) {
		sum = max(sum, e.N)
	}
	return sum
}

// Sums yields, for each event, the sum of the events in the interval of length d that ends with it;
// the events are sorted by time.
func Sums(d time.Duration, events []Event) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		sum, first := 0, 0
		for _, e := range events {
			sum += e.N
			for events[first].At <= e.At-d {
				sum -= events[first].N
				first++
			}
			if !yield(Event{At: e.At, N: sum}) {
				return
			}
		}
	}
}

// WithinRate returns an error if, at the time of any event, more have happened since the start than
// rate, in events a second, gives in that time and slack, plus extra. Unlike a count in a window,
// it does not depend on how late events are. The events are sorted by time.
func WithinRate(rate float64, slack time.Duration, extra float64, events []Event) error {
	sum := 0
	for _, e := range events {
		sum += e.N
		if bound := rate*(e.At+slack).Seconds() + extra; float64(sum) > bound {
			return fmt.Errorf("%d %v after the start: want at most %.1f of %v/s", sum, e.At, bound, rate)
		}
	}
	return nil
}
