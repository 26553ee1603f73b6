package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/file"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A folder is a temporary folder, with the operations of an operator.
type folder struct {
	t    *testing.T
	root string
}

func (f folder) path(name string) string { return filepath.Join(f.root, name) }

// write writes a policy file in place, and makes its folder.
func (f folder) write(name string, rate int64) {
	require.NoError(f.t, os.MkdirAll(filepath.Dir(f.path(name)), 0o700))
	text := fmt.Sprintf("schema: 2\npolicies:\n  - scope: cluster\n    messageRate: %d\n", rate)
	require.NoError(f.t, os.WriteFile(f.path(name), []byte(text), 0o600))
}

func (f folder) rename(from, to string) { require.NoError(f.t, os.Rename(f.path(from), f.path(to))) }

// link makes a link to a target relative to it, and replaces an older one atomically.
func (f folder) link(target, name string) {
	require.NoError(f.t, os.Symlink(target, f.path(name+".new")))
	f.rename(name+".new", name)
}

func (f folder) removeAll(name string) { require.NoError(f.t, os.RemoveAll(f.path(name))) }

// TestEventsShowEachChange relies on events alone: no watched file is checked without one.
func TestEventsShowEachChange(t *testing.T) {
	for name, c := range map[string]struct {
		watched string // within the folder
		before  func(f folder)
		changes []func(f folder, rate int64)
	}{
		"in place": {"p.yaml", func(f folder) { f.write("p.yaml", 1) }, []func(folder, int64){
			func(f folder, rate int64) { f.write("p.yaml", rate) },
			func(f folder, rate int64) { f.write("p.yaml", rate) },
		}},
		"by renaming": {"p.yaml", func(f folder) { f.write("p.yaml", 1) }, []func(folder, int64){
			func(f folder, rate int64) { f.write("p.new", rate); f.rename("p.new", "p.yaml") },
			func(f folder, rate int64) { f.rename("p.yaml", "p.old"); f.write("p.yaml", rate) },
			func(f folder, rate int64) { f.write("p.new", rate); f.rename("p.new", "p.yaml") },
		}},
		"as Kubernetes does": {"p.yaml", func(f folder) {
			f.write("..v1/p.yaml", 1)
			f.link("..v1", "..data")
			f.link("..data/p.yaml", "p.yaml")
		}, []func(folder, int64){
			func(f folder, rate int64) {
				f.write("..v2/p.yaml", rate)
				f.link("..v2", "..data")
				f.removeAll("..v1")
			},
			func(f folder, rate int64) {
				f.write("..v3/p.yaml", rate)
				f.link("..v3", "..data")
				f.removeAll("..v2")
			},
		}},
		"behind links": {"current/p.yaml", func(f folder) {
			f.write("v1/shared/p.yaml", 1)
			f.link(filepath.Join(f.root, "v1", "shared"), "current")
		}, []func(folder, int64){
			func(f folder, rate int64) { f.write("v1/shared/p.yaml", rate) },
			func(f folder, rate int64) { f.write("v2/p.yaml", rate); f.link("v2", "current") },
			func(f folder, rate int64) { f.write("v2/p.yaml", rate) },
			func(f folder, rate int64) {
				f.removeAll("current")
				f.write("v3/p.yaml", rate)
				f.link("./v3", "current")
			},
		}},
		"later folder": {"a/b/c/p.yaml", func(f folder) { f.write("a/b/c/p.yaml", 1) }, []func(folder, int64){
			func(f folder, rate int64) {
				f.removeAll("a")
				time.Sleep(50 * time.Millisecond) // time to see that the file is missing
				f.write("a/b/c/p.yaml", rate)
			},
			func(f folder, rate int64) { f.removeAll("a/b"); f.write("a/b/c/p.yaml", rate) },
			func(f folder, rate int64) { f.rename("a/b/c", "d"); f.write("a/b/c/p.yaml", rate) },
			func(f folder, rate int64) { f.write("a/b/c/p.yaml", rate) },
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := folder{t, t.TempDir()}
			c.before(f)
			s := open(t, f.path(c.watched))
			s.CheckEvery(time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
			defer cancel()
			step := int64(0)
			for snap, err := range configstore.Source(s).Snapshots(ctx) {
				if err != nil || rateOf(snap) <= step {
					continue // between two states
				}
				require.Equal(t, step+1, rateOf(snap))
				if step++; step > int64(len(c.changes)) {
					return
				}
				time.Sleep(20 * time.Millisecond) // it most likely waits by now
				c.changes[step-1](f, step+1)
			}
			t.Fatalf("change %d was not seen", step)
		})
	}
}

func rateOf(s policy.Snapshot) int64 {
	rate := s.Set.Resolve("", policy.Topic{}, "").Topic.MessageRate
	return rate.Permits
}

// TestChangeInTheSameMoment: a change is found although the file keeps its modification time, since
// the change came so soon, or by a copy, or since the time was set.
func TestChangeInTheSameMoment(t *testing.T) {
	for name, c := range map[string]struct {
		age    time.Duration // of the file
		change func(f folder)
	}{
		"in place":     {0, func(f folder) { f.write("p.yaml", 2) }},
		"by a copy":    {time.Hour, func(f folder) { f.write("new.yaml", 2); f.rename("new.yaml", "p.yaml") }},
		"another size": {time.Hour, func(f folder) { f.write("p.yaml", 20) }},
	} {
		f := folder{t, t.TempDir()}
		modified := time.Now().Add(-c.age)
		same := func() { require.NoError(t, os.Chtimes(f.path("p.yaml"), modified, modified)) }
		f.write("p.yaml", 1)
		same()
		store := open(t, f.path("p.yaml"))
		snap, err := store.List(t.Context())
		require.NoError(t, err)
		was := snap.Revision
		c.change(f)
		same()
		snap, err = store.List(t.Context())
		require.NoError(t, err)
		assert.NotEqual(t, policy.PerSecond(1), snap.Entries[0].Settings.(policy.Policy).MessageRate, name)
		assert.Greater(t, snap.Revision, was, name)
		again, err := store.List(t.Context())
		require.NoError(t, err)
		assert.Equal(t, snap, again, name)
	}
}

// TestChangeWithoutEventIsFound: there is no event when a folder further up is replaced.
func TestChangeWithoutEventIsFound(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("a/b/p.yaml", 1)
	f.write("new/b/p.yaml", 2)
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	for snap, err := range configstore.Source(open(t, f.path("a/b/p.yaml"))).Snapshots(ctx) {
		require.NoError(t, err)
		if rateOf(snap) == 2 {
			return
		}
		f.rename("a", "old")
		f.rename("new", "a")
	}
	t.Fatal("the change was not found")
}

// TestReplaceLeavesNothingBehind: Apply keeps a link, and leaves no temporary file.
func TestReplaceLeavesNothingBehind(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("real/p.yaml", 1)
	f.link("real/p.yaml", "p.yaml")
	change := []configstore.Change{{Settings: policy.Policy{Burst: new(int64(1))}}}
	_, err := open(t, f.path("p.yaml")).Apply(t.Context(), configstore.Commit{Changes: change})
	require.NoError(t, err)
	info, err := os.Lstat(f.path("p.yaml"))
	require.NoError(t, err)
	assert.Equal(t, os.ModeSymlink, info.Mode().Type(), "a link stays a link")
	var names []string
	entries, err := os.ReadDir(f.path("real"))
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"p.yaml"}, names)
	text, err := os.ReadFile(f.path("real/p.yaml"))
	require.NoError(t, err)
	parsed, err := file.Parse("p", text)
	require.NoError(t, err)
	assert.Len(t, parsed, 1)
}

// TestAFaultIsReportedOnce: a file that gets another modification time with the same content is not
// reported again. To a reader it gets one, too, if it is replaced between the look at its time and
// its reading.
func TestAFaultIsReportedOnce(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("p.yaml", 1)
	s := open(t, f.path("p.yaml"))
	s.CheckEvery(time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	start, err := s.List(ctx)
	require.NoError(t, err)
	for name, text := range map[string]string{"first": "5", "other": "[7]"} {
		require.NoError(t, os.WriteFile(f.path(name), []byte("schema: 2\npolicies: "+text+"\n"), 0o600))
	}
	f.rename("first", "p.yaml")
	other := make(chan error, 1)
	var faults []string
	for _, err := range s.Watch(ctx, start) {
		if err == nil {
			continue
		}
		if faults = append(faults, err.Error()); len(faults) == 1 {
			later := time.Now().Add(time.Minute)
			require.NoError(t, os.Chtimes(f.path("p.yaml"), later, later))
			go func() { // when Watch has looked again
				time.Sleep(100 * time.Millisecond)
				other <- os.Rename(f.path("other"), f.path("p.yaml"))
			}()
		} else {
			break
		}
	}
	require.NoError(t, <-other)
	require.Len(t, faults, 2)
	assert.NotEqual(t, faults[0], faults[1])
}
