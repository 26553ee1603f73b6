package quota

// Ratio is ratio, for tests.
func (l Load) Ratio() (ratio float64, ok bool) { return l.ratio() }
