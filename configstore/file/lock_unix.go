//go:build unix

package file

import (
	"os"
	"path/filepath"
	"syscall"
)

// lock keeps other writers of the file out until unlock. The lock lies on a file beside it, which
// stays: the file itself is replaced by each write.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil // which gives the lock back
}
