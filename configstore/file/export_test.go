package file

import (
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// ParseAt is Parse at a given time.
func ParseAt(name string, data []byte, now time.Time) ([]policy.Entry, error) {
	return parseAt(name, data, now)
}

// CheckEvery sets how often a file without events is checked, so that a test can rely on events.
func (s *Store) CheckEvery(d time.Duration) { s.checkEvery = d }

// FailToReplace has changes of the file fail until undo.
func (s *Store) FailToReplace(err error) (undo func()) {
	s.replace = func(string, []byte, time.Time) error { return err }
	return func() { s.replace = replace }
}

// SetMaxHistorySize sets the size of the longest history until undo.
func SetMaxHistorySize(n int) (undo func()) {
	old := maxHistorySize
	maxHistorySize = n
	return func() { maxHistorySize = old }
}
