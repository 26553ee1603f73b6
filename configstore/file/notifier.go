package file

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is the time between the report of a change and the reading of the file. Editors and
// os.WriteFile truncate a file before they write it, and an empty file is a fault.
const settle = 10 * time.Millisecond

// A notifier waits for changes of a file. It watches directories and not the file itself, since a
// file is replaced by renaming another one, and a ConfigMap of Kubernetes by changing a link: the
// directories of the file and of each link on the path to it. If a part of the path is missing, it
// watches the directory where that part will be created.
type notifier struct {
	path    string
	watcher *fsnotify.Watcher // nil: the system provides none
	names   map[string]bool   // the directories, and their entries on the path to the file
}

func newNotifier(path string) *notifier {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		watcher = nil // see checkEvery
	}
	return &notifier{path: path, watcher: watcher}
}

func (n *notifier) close() {
	if n.watcher != nil {
		_ = n.watcher.Close() // it is not used again
	}
}

// arm watches the directories that matter now. It returns when none had to be added, so that it
// has followed the path while all of them were watched.
func (n *notifier) arm() {
	for added := n.watcher != nil; added; {
		added = false
		n.names = make(map[string]bool)
		dirs := make(map[string]bool)
		for _, name := range onPath(n.path) {
			dir := filepath.Dir(name)
			n.names[name], n.names[dir], dirs[dir] = true, true, true
		}
		for _, dir := range n.watcher.WatchList() {
			if !dirs[dir] {
				_ = n.watcher.Remove(dir) // it may have been deleted
			}
			delete(dirs, dir)
		}
		for dir := range dirs {
			if n.watcher.Add(dir) == nil { // else see checkEvery
				added = true
			}
		}
	}
}

// wait returns when the file may have changed, after d, or when ctx or the store ends.
func (n *notifier) wait(ctx context.Context, closed <-chan struct{}, d time.Duration) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if n.watcher != nil {
		events, errs = n.watcher.Events, n.watcher.Errors
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	var settled <-chan time.Time // nil: nothing has changed yet
	for {
		select {
		case e := <-events:
			if settled == nil && n.names[filepath.Clean(e.Name)] {
				settled = time.After(settle)
			}
			continue
		case <-errs: //nolint:errcheck // whatever it is, events may be missing
		case <-settled:
		case <-timer.C:
		case <-closed:
		case <-ctx.Done():
		}
		return
	}
}

// maxLinks is the number of links that a path may have, as for Linux itself.
const maxLinks = 40

// onPath returns the names whose change may change the file at an absolute path: each link that
// the path goes through, and the file or the first part that is missing.
func onPath(path string) (names []string) {
	const separator = string(filepath.Separator)
	for range maxLinks {
		dir := filepath.VolumeName(path) + separator
		parts := strings.Split(path[len(dir):], separator)
		path = ""
		for i, part := range parts {
			name := filepath.Join(dir, part)
			info, err := os.Lstat(name)
			if err != nil || i == len(parts)-1 && info.Mode()&fs.ModeSymlink == 0 {
				return append(names, name)
			}
			if info.Mode()&fs.ModeSymlink != 0 {
				names = append(names, name)
				target, err := os.Readlink(name)
				if err != nil {
					return names
				}
				if !filepath.IsAbs(target) {
					target = filepath.Join(dir, target)
				}
				path = filepath.Join(target, filepath.Join(parts[i+1:]...))
				break
			}
			dir = name
		}
	}
	return names
}
