package file

import (
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// ParseAt is Parse at a given time.
func ParseAt(name string, data []byte, now time.Time) ([]policy.Entry, error) {
	entries, _, err := parseAt(name, data, now)
	return entries, err
}

// CheckEvery sets how often a file without events is checked, so that a test can rely on events.
func (s *Store) CheckEvery(d time.Duration) { s.checkEvery = d }
