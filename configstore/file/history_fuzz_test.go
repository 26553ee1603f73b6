package file_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/file"
	"github.com/dispatchthrottle/throttle/policy"
)

// FuzzHistory: whatever is in the history of a file, a change is made and is its newest record.
func FuzzHistory(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte(`{"from":"","to":"1","change":{"time":"2026-11-28T12:00:00Z","changes":[]}}` + "\n{\n\n"))
	f.Add([]byte(`{"to":"e3b0c44298fc1c149afbf4c8996fb924","change":1}` + "\n" + `{"from":"a","to":"b","change":{}}`))
	dir := f.TempDir()
	defer file.SetMaxHistorySize(200)() // so that some are shortened
	f.Fuzz(func(t *testing.T, history []byte) {
		path := filepath.Join(dir, "p.yaml")
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, os.WriteFile(path+".history", history, 0o600))
		s, err := file.OpenOrCreate(path)
		require.NoError(t, err)
		defer func() { assert.NoError(t, s.Close()) }()
		made := configstore.Commit{By: configstore.By{Author: "ann"}, Changes: burst(5)}
		revision, err := s.Apply(t.Context(), made)
		require.NoError(t, err)
		yielded := false
		for r, err := range s.History(t.Context()) {
			yielded = true
			require.NoError(t, err)
			require.NoError(t, r.Err)
			assert.Equal(t, revision, r.Revision)
			assert.Equal(t, "ann", r.Author)
			assert.Equal(t, []configstore.Changed{{
				Is: configstore.Value{Settings: policy.Policy{Burst: new(int64(5))}},
			}}, r.Changes)
			break
		}
		assert.True(t, yielded)
	})
}
