//go:build unix

package file

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// maxLockWait is the longest pause between two attempts to lock a file.
const maxLockWait = 20 * time.Millisecond

// lock keeps other writers of a file out until unlock. It locks a file beside it, which stays:
// each write replaces the file itself. It retries with jittered pauses until ctx ends, since a
// blocking flock does not return when ctx does.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".lock")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, maxLockWait) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // releases the lock
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("%s: another writer holds the lock: %w", name,
				context.Cause(ctx))
		}
	}
}
