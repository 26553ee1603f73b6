package journal

import "time"

// An Interval is a time from which until which something may be the case, in Unix nanoseconds.
type Interval struct{ From, To int64 }

func (i Interval) overlaps(from, to int64) bool { return i.From <= to && from <= i.To }

// A Rate is a limit that may be in force during an interval. Intervals overlap: a change is not in
// force everywhere at once.
type Rate struct {
	Interval
	PerSecond int
}

// A Second is a second and what was delivered in it.
type Second struct {
	End       int64 // Unix nanoseconds
	N         int   // deliveries
	PerSecond int   // the highest limit that may have been in force
}

// Percent is what was delivered, as a part of the limit, rounded up.
func (s Second) Percent() int {
	if s.PerSecond == 0 {
		return 0
	}
	return (100*s.N + s.PerSecond - 1) / s.PerSecond
}

// Highest returns the seconds in which the largest part of the limit was delivered: of those that
// no exception overlaps, and of the others. at is sorted.
func Highest(at []int64, rates []Rate, exceptions []Interval) (regular, excepted Second) {
	first := 0
	for i, end := range at {
		begin := end - int64(time.Second)
		for at[first] <= begin {
			first++
		}
		s := Second{End: end, N: i - first + 1}
		from := begin
		highest := &regular
		for _, e := range exceptions {
			if e.overlaps(begin, end) {
				// A consumer that is cut off does not learn of a change.
				from, highest = min(from, e.From), &excepted
			}
		}
		for _, r := range rates {
			if r.overlaps(from, end) {
				s.PerSecond = max(s.PerSecond, r.PerSecond)
			}
		}
		if s.Percent() > highest.Percent() {
			*highest = s
		}
	}
	return regular, excepted
}
