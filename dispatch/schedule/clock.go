package schedule

import "math"

// silence is how long a schedule must be without requests, in seconds, for the next one to resume
// it.
const silence = 0.2

// stepped is how far outside the bounds of a request the store's clock must be to count as
// stepped, in seconds.
const stepped = 0.02

// A step forward of at most slowest seconds may turn out to have been a slow request, for doubted
// seconds. Slower requests fail.
const (
	slowest = 0.5
	doubted = 0.25
)

// A Step is a presumed forward step of the store's clock that may still prove to be a slow
// request.
type Step struct {
	By    float64 // seconds that the state's times were moved by
	Ahead float64 // seconds that the tail is further ahead since
	At    float64 // when it was presumed
}

// follow moves the state's times along when the store's clock has stepped, so that the same slots
// stay allocated.
//
// A request's bounds say what the clock should show, by the caller's own clock and its last
// reply; Shifts has the steps that other requests have shown since. A slow request looks like a
// step forward, and at most like the time since the last request with bounds. The tail is then
// ahead by mistake, until another request contradicts. A strict schedule stays ahead, since slots
// may have been allocated in between. A step back is certain only as far as the clock is behind
// the last request.
func (a *allocation) follow() {
	if !a.known {
		return
	}
	r, now := &a.r, a.now
	by, ahead := 0.0, 0.0
	if r.High > 0 {
		told := a.Shifts
		if r.Carry.Inc == a.Inc { // else the caller's last reply is older than this state
			told -= r.Carry.Shifts
		}
		switch {
		case now > r.High+told+stepped:
			by = min(now-((r.Low+r.High)/2+told), max(0, now-a.Checked))
			ahead = max(0, by-max(0, now-a.Tail))
			if now-a.Step.At > doubted || a.Step.By+by > slowest {
				a.Step = Step{}
			}
			if by <= slowest {
				a.Step = Step{a.Step.By + by, a.Step.Ahead + ahead, now - by}
			}
		case now < r.Low+told-stepped && a.Step.By > 0 && now-a.Step.At <= doubted && !r.Strict:
			by = -min((r.Low+r.High)/2+told-now, a.Step.By)
			ahead = -min(-by, a.Step.Ahead)
			a.Step.By, a.Step.Ahead = a.Step.By+by, a.Step.Ahead+ahead
		}
	}
	tail := a.Tail + by
	if by < 0 {
		tail = a.Tail + ahead
	}
	if now < a.Last+by {
		tail -= a.Last + by - now
		by = now - a.Last
		a.Step = Step{}
	}
	if by != 0 {
		a.move(by)
		a.Tail = tail
	}
	if r.High > 0 {
		a.Checked = now
	}
}

// move moves all times but the tail by that many seconds.
func (s *State) move(by float64) {
	s.Shifts += by
	s.Last += by
	s.Checked += by
	s.Resumed += by
	s.Start += by
	s.Quick += by
	s.Step.At += by
	if s.Rival.Source != "" {
		s.Heard += by
		s.Rival.Heard += by
	}
	if s.Line.Epoch != 0 {
		s.Line.Seen += by
		s.Line.Epoch = max(1, s.Line.Epoch+int64(math.Floor(by+0.5)))
	}
	s.Outcomes.Service = s.Outcomes.Service.Later(by)
	if s.Outcomes.Since > 0 {
		s.Outcomes.Since += by
	}
	waiters := s.Queue
	s.Queue = nil
	for _, w := range waiters {
		s.Queue = append(s.Queue, Waiter{w.Name, w.Until + by})
	}
}
