package permits

import (
	"context"
	"math/rand/v2"
	"time"
)

// WaitAfterConflict waits before a compare-and-swap that lost is tried again: for a random time of
// up to 2 ms, which doubles with each attempt (the first is 0), up to 32 ms. It returns ctx's
// error if ctx ends first.
func WaitAfterConflict(ctx context.Context, attempt int) error {
	timer := time.NewTimer(rand.N(2 * time.Millisecond << min(attempt, 4)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
