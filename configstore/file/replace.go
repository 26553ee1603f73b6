//go:build !windows

package file

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// replace writes a file so that a reader sees the old content or the new, never a part, and so
// that the new one survives a power failure. The file keeps its mode, and a link stays a link.
func replace(path string, data []byte, modified time.Time) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	dir := filepath.Dir(path)
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir),
		renameio.WithStaticPermissions(0o644), renameio.WithExistingPermissions())
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }() // does nothing once the file is replaced
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := os.Chtimes(f.Name(), modified, modified); err != nil {
		return err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return err
	}
	parent, err := os.Open(dir) // renameio does not sync the directory
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}
