package cluster

import (
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// An estimate is what several records of all replicas say together of a subscription.
type estimate struct {
	backlogs []sample // of the last trend, the oldest first
	waits    [waitWindows]dispatch.Histogram
	window   int64 // number of the window that counts now
	known    bool  // a replica has had two records, so that waits are known
	p99      Number
	longer   bool // than p99, which is the longest bound
	changed  bool // the waits, since p99 was computed
}

type sample struct {
	at      time.Time
	backlog float64 // messages
}

const (
	trend    = time.Minute      // over which it is judged whether a backlog shrinks
	minTrend = 10 * time.Second // without so much, that is unknown

	// Waits are counted in windows, so that those of the last minute or so are known.
	waitWindows = 6
	waitWindow  = 10 * time.Second
)

// addWaits counts waits that ended before now.
func (e *estimate) addWaits(h dispatch.Histogram, now time.Time) {
	e.known = true
	if h.Count == 0 {
		return
	}
	e.turn(now)
	e.waits[e.window%waitWindows].Add(h)
	e.changed = true
}

// turn forgets the waits of windows that are over.
func (e *estimate) turn(now time.Time) {
	n := now.UnixNano() / int64(waitWindow)
	if n < e.window { // the clock was set back
		*e = estimate{window: n, known: e.known}
	}
	for e.window = max(e.window, n-waitWindows); e.window < n; e.changed = true {
		e.window++
		e.waits[e.window%waitWindows] = dispatch.Histogram{}
	}
}

// waitP99 returns the length, in seconds, that 99 % of the waits of the last minute or so do not
// exceed; 0 without any. If it is longer than all bounds, it is unknown by how much.
func (e *estimate) waitP99(now time.Time) (p99 Number, longer bool) {
	if !e.known {
		return Unknown, false
	}
	if e.turn(now); e.changed {
		all := e.all()
		unbounded := all.Buckets[len(dispatch.WaitBuckets)]
		e.p99, e.longer, e.changed = Number(all.Quantile(0.99).Seconds()), 100*unbounded > all.Count, false
	}
	return e.p99, e.longer
}

// all returns the waits of the last minute or so, as of the last waitP99.
func (e *estimate) all() (all dispatch.Histogram) {
	for _, h := range e.waits {
		all.Add(h)
	}
	return all
}

// addBacklog notes the backlog at now, at most once a second.
func (e *estimate) addBacklog(backlog Number, now time.Time) {
	if !backlog.Known() {
		e.backlogs = nil
		return
	}
	if n := len(e.backlogs); n > 0 && now.Sub(e.backlogs[n-1].at) < time.Second {
		return
	}
	e.backlogs = append(e.backlogs, sample{now, float64(backlog)})
	for now.Sub(e.backlogs[0].at) > trend {
		e.backlogs = e.backlogs[1:]
	}
}

// drainedIn returns in how many seconds the backlog will be gone if it goes on shrinking as in the
// last minute.
func (e *estimate) drainedIn() Number {
	t := e.trend()
	if t == nil {
		return Unknown
	}
	return Number(t.Backlog / t.PerSecond)
}

// trend returns how the backlog shrinks: by the line of least squares. It is nil if too little has
// been seen, or if the slope of that line is less than twice its standard error.
func (e *estimate) trend() *Trend {
	n := float64(len(e.backlogs))
	if n < 3 {
		return nil
	}
	first, last := e.backlogs[0].at, e.backlogs[len(e.backlogs)-1].at
	if last.Sub(first) < minTrend {
		return nil
	}
	var meanTime, mean float64
	for _, s := range e.backlogs {
		meanTime += s.at.Sub(first).Seconds() / n
		mean += s.backlog / n
	}
	var times, backlogs, both float64 // sums of squares and products of deviations
	for _, s := range e.backlogs {
		t, b := s.at.Sub(first).Seconds()-meanTime, s.backlog-mean
		times, backlogs, both = times+t*t, backlogs+b*b, both+t*b
	}
	slope := both / times
	deviation := math.Sqrt(max(0, backlogs-slope*both) / (n - 2) / times)
	if -slope <= 2*deviation {
		return nil
	}
	seconds := last.Sub(first).Seconds()
	return &Trend{max(0, mean+slope*(seconds-meanTime)), -slope, seconds}
}
