package file_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/file"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func setBurst(t testing.TB, s *file.Store, n int64) {
	t.Helper()
	_, err := s.Apply(t.Context(), configstore.Commit{Changes: burst(n)})
	require.NoError(t, err)
}

func burst(n int64) []configstore.Change {
	return []configstore.Change{{Settings: policy.Policy{Burst: &n}}}
}

func historyOf(t testing.TB, s *file.Store) (records []configstore.Record) {
	t.Helper()
	for r, err := range s.History(t.Context()) {
		require.NoError(t, err)
		records = append(records, r)
	}
	return records
}

// bursts returns the burst of the cluster after each change of a history, the oldest first.
func bursts(t testing.TB, s *file.Store) (all []int64) {
	t.Helper()
	was := configstore.Value{}
	records := historyOf(t, s)
	slices.Reverse(records)
	for i, r := range records {
		require.NoError(t, r.Err)
		require.Len(t, r.Changes, 1)
		require.Equal(t, was, r.Changes[0].Was, "record %d follows the one before", i)
		was = r.Changes[0].Is
		all = append(all, *was.Settings.(policy.Policy).Burst)
	}
	return all
}

// TestPutBack: a change whose temporary value has ended stays in the history when the file that was
// there before is put back, and is changed again.
func TestPutBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	setBurst(t, s, 1)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = s.Apply(t.Context(), configstore.Commit{Changes: []configstore.Change{{
		Key: configstore.Key{Field: "burst"}, Settings: policy.Policy{Burst: new(int64(2))}, TTL: time.Second,
	}}})
	require.NoError(t, err)
	throttletest.Until(t, "the temporary value has ended", func() bool {
		list, err := s.List(t.Context())
		return err == nil && len(list.Entries) == 1
	})
	write := func(data []byte) {
		require.NoError(t, os.WriteFile(path+".new", data, 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	write(before)
	require.Len(t, historyOf(t, s), 2)
	setBurst(t, s, 3)
	records := historyOf(t, s)
	require.Len(t, records, 3)
	assert.Equal(t, "burst", records[1].Changes[0].Field)
	setBurst(t, s, 4)
	assert.Len(t, historyOf(t, s), 4)
}

// TestCrashInChange: a process that ends at any byte of a change leaves a file and a history that
// agree, and the next change goes on from there.
func TestCrashInChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	setBurst(t, s, 1)
	fileBefore, err := os.ReadFile(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	historyBefore, err := os.ReadFile(path + ".history")
	require.NoError(t, err)
	setBurst(t, s, 2)
	historyAfter, err := os.ReadFile(path + ".history")
	require.NoError(t, err)
	ends := []int{len(historyAfter)} // the whole line, of a file that was not written
	for end := len(historyBefore); end < len(historyAfter); end += 1 + rand.IntN(12) {
		ends = append(ends, end)
	}
	for _, end := range ends {
		dir := t.TempDir()
		path := filepath.Join(dir, "p.yaml")
		require.NoError(t, os.WriteFile(path, fileBefore, 0o600))
		require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
		require.NoError(t, os.WriteFile(path+".history", historyAfter[:end], 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".p.yaml123"), []byte("schema: 2\npol"), 0o600))
		s := open(t, path)
		assert.Equal(t, []int64{1}, bursts(t, s), "cut off at byte %d", end)
		setBurst(t, s, 3)
		setBurst(t, s, 4)
		assert.Equal(t, []int64{1, 3, 4}, bursts(t, s), "cut off at byte %d", end)
	}
}

// TestKilledInChange: the same with kill -9 at any time, of processes that change as fast as they
// can.
func TestKilledInChange(t *testing.T) {
	const env = "THROTTLE_TEST_CHANGES"
	if path := os.Getenv(env); path != "" { // the process to be killed
		s := open(t, path)
		first := int64(os.Getpid()) * 1000
		for n := int64(1); ; n++ {
			setBurst(t, s, first+n)
			fmt.Println("made", n)
		}
	}
	path := filepath.Join(t.TempDir(), "p.yaml")
	made, killed := 0, 0
	for range 15 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledInChange$", "-test.v")
		cmd.Env = append(os.Environ(), env+"="+path)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		after := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), "made "); ok {
				n, err := strconv.Atoi(rest)
				require.NoError(t, err)
				made++
				if n == 3 {
					after.Reset(time.Duration(rand.IntN(10_000)) * time.Microsecond)
				}
			}
		}
		require.Error(t, cmd.Wait(), "it was killed")
		killed++
		s := open(t, path)
		all := bursts(t, s)
		require.NotEmpty(t, all)
		assert.GreaterOrEqual(t, len(all), made, "what was reported as made is recorded")
		assert.LessOrEqual(t, len(all), made+killed)
		list, err := s.List(t.Context())
		require.NoError(t, err)
		assert.Equal(t, all[len(all)-1], *list.Entries[0].Policy().Burst, "the last record is what is stored")
	}
}

// TestOldContentPutBack: an editor or a version control that puts back the content before the last
// change makes a change of its own.
func TestOldContentPutBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	setBurst(t, s, 1)
	old, err := os.ReadFile(path)
	require.NoError(t, err)
	setBurst(t, s, 2)
	require.NoError(t, os.WriteFile(path+".new", old, 0o600))
	later := time.Now().Add(time.Second)
	require.NoError(t, os.Chtimes(path+".new", later, later))
	require.NoError(t, os.Rename(path+".new", path))
	assert.Equal(t, []int64{1, 2, 1}, bursts(t, s))
	setBurst(t, s, 3)
	assert.Equal(t, []int64{1, 2, 1, 3}, bursts(t, s))
}

// TestLongHistory: a history that has become too long loses its older half, and begins with what
// the file held then.
func TestLongHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	apply := func(reason string, changes ...configstore.Change) {
		t.Helper()
		_, err := s.Apply(t.Context(), configstore.Commit{By: configstore.By{Reason: reason}, Changes: changes})
		require.NoError(t, err)
	}
	other := policy.NamespaceScope("public", "", "default")
	apply("", configstore.Change{
		Key: configstore.Key{Scope: other}, Settings: policy.Policy{MessageRate: policy.PerSecond(5)},
	})
	const changes = 30
	for n := range int64(changes) {
		apply(strings.Repeat("x", configstore.MaxReason), burst(n+1)...)
	}
	defer file.SetMaxHistorySize(64 << 10)()
	apply("the last one", burst(100)...)
	info, err := os.Stat(path + ".history")
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(64<<10))
	records := historyOf(t, s)
	require.Greater(t, len(records), 4)
	require.Less(t, len(records), changes/2)
	assert.Equal(t, "the last one", records[0].Reason)
	first := records[len(records)-1]
	assert.True(t, first.First)
	assert.True(t, first.Found)
	held := map[policy.Scope]policy.Settings{}
	for _, c := range first.Changes {
		assert.True(t, c.Was.Unknown)
		held[c.Scope] = c.Is.Settings
	}
	begin := int64(changes - len(records) + 2)
	assert.Equal(t, map[policy.Scope]policy.Settings{
		other: policy.Policy{MessageRate: policy.PerSecond(5)}, {}: policy.Policy{Burst: &begin},
	}, held)
	write(t, path, []configstore.Change{{Key: configstore.Key{Scope: other}}})
	assert.Equal(t, []configstore.Changed{{
		Key: configstore.Key{Scope: other},
		Was: configstore.Value{Settings: policy.Policy{MessageRate: policy.PerSecond(5)}},
	}}, historyOf(t, s)[0].Changes, "what was forgotten is known")
}

// TestDamagedHistory: a line that cannot be read is shown, and hides no other. The history is as
// private as the file.
func TestDamagedHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	require.NoError(t, os.WriteFile(path, []byte("schema: 2\npolicies: []\n"), 0o600))
	s := open(t, path)
	setBurst(t, s, 1)
	setBurst(t, s, 2)
	data, err := os.ReadFile(path + ".history")
	require.NoError(t, err)
	first, second, _ := strings.Cut(string(data), "\n")
	require.NoError(t, os.WriteFile(path+".history", []byte(first+"\nrubbish\n"+second), 0o600))
	setBurst(t, s, 3)
	var errs []bool
	for _, r := range historyOf(t, s) {
		errs = append(errs, r.Err != nil)
	}
	assert.Equal(t, []bool{false, false, true, false}, errs)
	info, err := os.Stat(path + ".history")
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestNothingInvented: what an entry held before a record that cannot be read is unknown.
func TestNothingInvented(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	setBurst(t, s, 1)
	first, err := os.ReadFile(path + ".history")
	require.NoError(t, err)
	setBurst(t, s, 2)
	require.NoError(t, os.WriteFile(path+".history", append(first, "rubbish\n"...), 0o600))
	records := historyOf(t, s)
	require.True(t, records[0].Found)
	assert.Equal(t, []configstore.Changed{{
		Was: configstore.Value{Unknown: true}, Is: configstore.Value{Settings: policy.Policy{Burst: new(int64(2))}},
	}}, records[0].Changes)
}

// TestFailedChange: a change that was recorded and then failed has no record, whatever is edited
// after it.
func TestFailedChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	setBurst(t, s, 1)
	undo := s.FailToReplace(errors.New("no space left on device"))
	_, err := s.Apply(t.Context(), configstore.Commit{Changes: burst(2)})
	require.ErrorContains(t, err, "no space left")
	undo()
	write(t, path, burst(3))
	assert.Equal(t, []int64{1, 3}, bursts(t, s))
	setBurst(t, s, 4)
	assert.Equal(t, []int64{1, 3, 4}, bursts(t, s))
}

// TestLongDamagedHistory: a history whose newer half is damaged, as a power failure leaves it, does
// not keep anybody from a change.
func TestLongDamagedHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	setBurst(t, s, 1)
	setBurst(t, s, 2)
	f, err := os.OpenFile(path+".history", os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.Write(append(make([]byte, 100<<10), '\n'))
	require.NoError(t, errors.Join(err, f.Close()))
	defer file.SetMaxHistorySize(64 << 10)()
	setBurst(t, s, 3)
	setBurst(t, s, 4)
	got := historyOf(t, s)
	require.GreaterOrEqual(t, len(got), 2)
	for _, r := range got {
		require.NoError(t, r.Err)
	}
	assert.Equal(t, int64(4), *got[0].Changes[0].Is.Settings.(policy.Policy).Burst)
}

// TestHistoryOfSeveralUsers: who may replace the file may write its history, whatever the umask.
func TestHistoryOfSeveralUsers(t *testing.T) {
	for mode, want := range map[os.FileMode]os.FileMode{0o664: 0o664, 0o444: 0o644, 0o600: 0o600} {
		path := filepath.Join(t.TempDir(), "p.yaml")
		require.NoError(t, os.WriteFile(path, []byte("schema: 2\npolicies: []\n"), 0o600))
		require.NoError(t, os.Chmod(path, mode))
		setBurst(t, open(t, path), 1)
		info, err := os.Stat(path + ".history")
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode().Perm())
	}
}

// TestEditBeforeShortening: what was edited past the tools is recorded, though the next change
// shortens the history.
func TestEditBeforeShortening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	for n := range int64(20) {
		_, err := s.Apply(t.Context(), configstore.Commit{
			By: configstore.By{Reason: strings.Repeat("x", configstore.MaxReason)}, Changes: burst(n + 1),
		})
		require.NoError(t, err)
	}
	scope := configstore.Key{Scope: policy.NamespaceScope("public", "", "default")}
	write(t, path, []configstore.Change{{Key: scope, Settings: policy.Policy{Burst: new(int64(777))}}})
	defer file.SetMaxHistorySize(32 << 10)()
	setBurst(t, s, 100)
	found := false
	for _, r := range historyOf(t, s) {
		for _, c := range r.Changes {
			if c.Key == scope {
				found = true
				assert.True(t, r.Found)
				assert.False(t, r.First)
				assert.False(t, c.Was.Unknown)
			}
		}
	}
	assert.True(t, found)
}
