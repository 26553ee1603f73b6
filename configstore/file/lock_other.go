//go:build !unix

package file

import (
	"context"
	"fmt"
)

var writer = make(chan struct{}, 1) // holds a value while a writer of this process is at work

// lock keeps other writers of this process out until unlock. Users must keep other processes from
// writing at the same time.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	select {
	case writer <- struct{}{}:
		return func() { <-writer }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: another writer holds the lock: %w", path, context.Cause(ctx))
	}
}
