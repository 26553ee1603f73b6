package busy

// At is at, for tests.
func (p Pattern) At(t int) float64 { return p.at(t) }
