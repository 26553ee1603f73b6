package file

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// replace puts a new file in place of the old one. renameio does not support Windows, which does
// not guarantee that this is atomic.
func replace(path string, data []byte, modified time.Time) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // fails once the file has been renamed
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Chtimes(f.Name(), modified, modified); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
