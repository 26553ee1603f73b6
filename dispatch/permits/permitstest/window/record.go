package window

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// A Record collects events by their source, such as a replica. Any number of goroutines may use it.
type Record struct {
	start time.Time

	mu     sync.Mutex
	events []Event // by time
}

// NewRecord returns an empty record that starts now.
func NewRecord() *Record { return &Record{start: time.Now()} }

// Now returns the time since the start of the record.
func (r *Record) Now() time.Duration { return time.Since(r.start) }

// Add records an event of n messages now.
func (r *Record) Add(source, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, Event{r.Now(), n, source})
}

// Events returns all events, by time.
func (r *Record) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Between returns the sum of the events in [from, to).
func (r *Record) Between(from, to time.Duration) int {
	return r.sum(from, to, func(Event) bool { return true })
}

// By returns the sum of the events of one source in [from, to).
func (r *Record) By(source int, from, to time.Duration) int {
	return r.sum(from, to, func(e Event) bool { return e.Source == source })
}

func (r *Record) sum(from, to time.Duration, counts func(Event) bool) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.At >= from && e.At < to && counts(e) {
			n += e.N
		}
	}
	return n
}

// Max returns the largest sum of events in any interval of length d, of the events since from.
func (r *Record) Max(d, from time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, _ := slices.BinarySearchFunc(r.events, from, func(e Event, from time.Duration) int {
		return cmp.Compare(e.At, from)
	})
	return Max(d, r.events[first:])
}
