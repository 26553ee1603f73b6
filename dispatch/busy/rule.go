package busy

// A Mode is a rule by which a limit slows down.
type Mode int

// The rules.
const (
	None       Mode = iota
	ByFraction      // Fraction
	ByCount         // TChannel
)

// A Rule is one of them, with its settings; the zero value is none. Sums, products and comparisons are all it needs, so that a script in a
// store can run it.
type Rule struct {
	Mode         Mode
	MinRate      float64 // of both
	Tolerance    float64 // of ByFraction
	RecoverRate  float64 // of ByCount
	RecoverValue float64 // of ByCount
}

// headroom is how far above what was sent lately a limit lies, by ByCount, before it is halved: a limit that nobody has felt yet must
// be brought down to where the traffic is.
const headroom = 2.0

// Next returns what is known after a window that ends now, which is above 0. A window of less than a second changes nothing.
func (r Rule) Next(s State, w Window, now float64) State {
	switch r.Mode {
	case ByFraction:
		return Fraction{Tolerance: r.Tolerance, MinRate: r.MinRate}.Next(s, w, now)
	case ByCount:
		return r.count(s, w)
	}
	return State{}
}

// count is TChannel's rule for traffic that is measured: with busy answers, the limit is first brought down to headroom times what was sent.
func (r Rule) count(s State, w Window) State {
	if !(w.Length >= 1) {
		return s
	}
	limit := s.Limit
	if limit == 0 {
		limit = Max
	}
	if w.Busy > 0 {
		limit = min(limit, headroom*(w.OK+w.Busy)/w.Length)
	}
	rule := TChannel{r.RecoverRate, r.RecoverValue, r.MinRate}
	answers := int(min(w.Busy, mostHalvings))
	for range min(int(w.Length), mostSteps) {
		limit = rule.Next(limit, answers)
		answers = 0
	}
	if limit >= Max {
		limit = 0
	}
	return State{Limit: limit}
}
