package file

import "time"

// CheckEvery sets how often a file without events is checked, so that a test can rely on events.
func (s *Store) CheckEvery(d time.Duration) { s.checkEvery = d }
