package file

import "time"

// ParseAt is Parse at a given time.
var ParseAt = parseAt

// CheckEvery sets how often a file without events is checked, so that a test can rely on events.
func (s *Store) CheckEvery(d time.Duration) { s.checkEvery = d }
