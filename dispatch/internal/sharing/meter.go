package sharing

// A meter measures how fast something is taken: over the last ten or so, but no less than 300 ms
// and no more than two minutes. A shorter average would show a caller that takes one permit every
// 6 s as if it took several a second. Its zero value is ready.
type meter struct {
	running bool
	start   float64 // of this window: when something was first taken, or the window before ended
	n       int64   // taken since then
	before  int64   // in the window before
	length  float64 // of that one, seconds; 0 = there is none
}

// The bounds of a window.
const (
	minWindow = 0.3 // seconds
	maxWindow = 60.0
	enough    = 10
)

// add counts n that were taken by now.
func (m *meter) add(n int64, now float64) {
	if !m.running { // the first ones only start the clock
		m.running, m.start = n > 0, now
		return
	}
	m.n += n
	if age := now - m.start; age >= minWindow && (m.n >= enough || age >= maxWindow) {
		m.before, m.length = m.n, age
		m.n, m.start = 0, now
	}
}

// rate is what was taken a second, up to now: in a window as long as the last one, part of which
// it is.
func (m *meter) rate(now float64) float64 {
	age := now - m.start
	if age >= m.length {
		return float64(m.n) / max(age, minWindow)
	}
	return (float64(m.before)*(1-age/m.length) + float64(m.n)) / m.length
}
