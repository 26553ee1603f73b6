package etcd

import "time"

// SetSearchTime sets how long the search for changes past the tools takes at most, until undo.
func SetSearchTime(d time.Duration) (undo func()) {
	old := searchTime
	searchTime = d
	return func() { searchTime = old }
}
