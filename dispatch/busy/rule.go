package busy

// A Mode selects the rule by which a limit slows down.
type Mode int

// The modes.
const (
	None       Mode = iota
	ByFraction      // Fraction
	ByCount         // TChannel
)

// A Rule is a mode with its settings. The zero value never limits. It computes with sums,
// products and comparisons only, so that a script in a permit store can do the same.
type Rule struct {
	Mode         Mode
	MinRate      float64 // of both modes
	Tolerance    float64 // of ByFraction
	RecoverRate  float64 // of ByCount
	RecoverValue float64 // of ByCount
}

// headroom bounds the limit that ByCount halves, as a multiple of the rate that was sent. A limit
// far above the traffic must come down to the traffic before halving it has an effect.
const headroom = 2.0

// Next returns the state after a window that ends at now, which is above 0. A window of less than
// a second changes nothing.
func (r Rule) Next(s State, w Window, now float64) State {
	switch r.Mode {
	case ByFraction:
		return Fraction{Tolerance: r.Tolerance, MinRate: r.MinRate}.Next(s, w, now)
	case ByCount:
		return r.count(s, w)
	}
	return State{}
}

// count applies TChannel's rule to measured traffic. If there are busy answers, it first lowers
// the limit to headroom times the rate that was sent.
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
	answers := int(min(w.Busy, maxHalvings))
	for range min(int(w.Length), maxSteps) {
		limit = rule.Next(limit, answers)
		answers = 0
	}
	if limit >= Max {
		limit = 0
	}
	return State{Limit: limit}
}
