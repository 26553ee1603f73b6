package dispatch

// A useMeter measures how fast something is taken, over the last ten or so, but no less than 300 ms and
// no more than two minutes: a shorter average would show who takes one permit every 6 s as if it took
// several a second. Its zero value is ready.
type useMeter struct {
	began  bool
	start  float64 // of this window: when it first took something, or the window before closed
	n      int64   // taken since then
	before int64   // in the window before
	length float64 // of that one, in seconds; 0 = there is none
}

// The bounds of a window.
const (
	minWindow  = 0.3 // seconds
	maxWindow  = 60.0
	enoughInIt = 10
)

// add counts n that were taken by now.
func (m *useMeter) add(n int64, now float64) {
	if !m.began { // what comes first only starts the clock
		m.began, m.start = n > 0, now
		return
	}
	m.n += n
	if age := now - m.start; age >= minWindow && (m.n >= enoughInIt || age >= maxWindow) {
		m.before, m.length = m.n, age
		m.n, m.start = 0, now
	}
}

// rate is what was taken a second, up to now: in a window as long as the last one, part of which it is.
func (m *useMeter) rate(now float64) float64 {
	age := now - m.start
	if age >= m.length {
		return float64(m.n) / max(age, minWindow)
	}
	return (float64(m.before)*(1-age/m.length) + float64(m.n)) / m.length
}
