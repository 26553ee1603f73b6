package cluster

import (
	"maps"
	"time"
)

// A track has a topic's figures of the last hour: a point for each step of seconds.
type track struct {
	step    int64
	times   []int64 // Unix seconds, of the end of each step
	figures [figures][]float32
	rates   Lines // by subscription and owner; as long as times

	last int64 // Unix seconds, of the last row

	// Since the last point:
	begin int64 // Unix seconds
	sums  [figures]mean
	sum   map[string]*mean
}

// The figures of a point, beside the rates.
const (
	limitFigure = iota
	backlogFigure
	waitFigure
	requestsFigure
	figures
)

// hour is how long points are kept, in seconds.
const hour = 3600

// A mean is that of the values that are known.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(x Number) {
	if x.Known() {
		m.sum += float64(x)
		m.n++
	}
}

// take returns the mean, NaN without values, and begins again.
func (m *mean) take() float32 {
	x := float32(m.sum / float64(m.n)) // 0/0 is NaN
	*m = mean{}
	return x
}

func newTrack(step int64, now time.Time) *track {
	return &track{step: step, begin: now.Unix(), rates: Lines{}, sum: map[string]*mean{}}
}

// add counts a row for the present step, and ends the step if it is over. If the last row is not
// later than gap, in Unix seconds, what was between the two is unknown.
func (t *track) add(r *Row, now time.Time, gap int64) {
	if now.Unix() < t.last { // the clock was set back
		*t = *newTrack(t.step, now)
	}
	if t.last != 0 && t.last <= gap {
		clear(t.sums[:])
		for _, m := range t.sum {
			*m = mean{}
		}
		t.end(t.last + 1)
		t.begin = now.Unix()
	}
	t.last = now.Unix()
	var requests sum
	for i := range r.Subscriptions {
		s := &r.Subscriptions[i]
		if s.Condition != Stale && !s.Uncounted {
			requests.add(float64(s.Requests))
		}
		m := t.sum[s.label()]
		if m == nil {
			m = &mean{}
			t.sum[s.label()] = m
		}
		m.add(s.measured)
	}
	for i, x := range [figures]Number{limitNumber(r.Limit), r.Backlog, r.WaitP99, requests.number()} {
		t.sums[i].add(x)
	}
	if now.Unix() >= t.begin+t.step {
		t.end(now.Unix())
	}
}

func limitNumber(l Limit) Number {
	if l.Reason == "" {
		return Unknown
	}
	return Number(l.Rate)
}

// end adds a point, and forgets those that are too old.
func (t *track) end(now int64) {
	for i := range t.sums {
		t.figures[i] = append(t.figures[i], t.sums[i].take())
	}
	for name, m := range t.sum {
		t.rates.Put(name, m.take(), len(t.times))
	}
	t.times, t.begin = append(t.times, now), now
	old := 0
	for old < len(t.times) && t.times[old] <= now-hour {
		old++
	}
	if old > 0 && (old >= len(t.times)/4 || t.step >= 60) { // not each time: they are moved
		t.times = append([]int64(nil), t.times[old:]...)
		for i := range t.figures {
			t.figures[i] = append([]float32(nil), t.figures[i][old:]...)
		}
		t.rates.Drop(old)
		maps.DeleteFunc(t.sum, func(name string, _ *mean) bool { return t.rates[name] == nil })
	}
}

// bytes is about how much memory the points take.
func (t *track) bytes() int {
	const own, ofRate = 1000, 200
	n := own + cap(t.times)*8 + 4*cap(t.times)*(figures+len(t.rates)) + ofRate*len(t.rates)
	for name := range t.rates {
		n += len(name)
	}
	return n
}
