package permits

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ErrConflict is why a record could not be replaced in time: others replaced it again and again. A
// request that fails with it should come again after a delay that grows.
var ErrConflict = errors.New("other processes replace it all the time")

// WaitAfterConflict waits before a compare-and-swap that lost is tried again: for a random time of
// up to 2 ms, which doubles with each attempt (the first is 0), up to 128 ms. It returns
// ErrConflict with ctx's error if ctx ends first.
func WaitAfterConflict(ctx context.Context, attempt int) error {
	timer := time.NewTimer(rand.N(2 * time.Millisecond << min(attempt, 6)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrConflict, ctx.Err())
	}
}
