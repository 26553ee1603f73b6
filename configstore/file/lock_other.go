//go:build !unix

package file

import "sync"

var writers sync.Mutex

// lock keeps other writers of this process out; those of others are up to the user.
func lock(string) (unlock func(), err error) {
	writers.Lock()
	return writers.Unlock, nil
}
