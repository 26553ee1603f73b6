package ratekeeper_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
)

const (
	dbToken      = "0123456789abcdef"
	archiveToken = "fedcba9876543210"
)

// TestTokens: a token is good for its backend; the file is read again, and what cannot be read
// changes nothing.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "tokens")
		write := func(text string) {
			require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
			time.Sleep(time.Second)
		}
		var log strings.Builder
		write("# two backends\n\ndb: " + dbToken + "\nblob store:9000: " + archiveToken + "\r\n")
		tokens, err := ratekeeper.OpenTokens(name, slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		has := func(token, want string) {
			t.Helper()
			backend, ok := tokens.Backend(token)
			assert.Equal(t, want != "", ok)
			assert.Equal(t, want, backend)
		}
		has(dbToken, "db")
		has(archiveToken, "blob store:9000")
		for _, wrong := range []string{"", dbToken[:15], dbToken + "0", "db: " + dbToken, "db"} {
			has(wrong, "")
		}
		const colons = "abcdef:0123456789:"
		write("db:1: " + colons)
		has(colons, "db:1")
		has("0123456789:", "")
		const next = "a-new-one-for-db"
		write("db: " + dbToken + "\ndb: " + next) // while the backend changes it
		has(dbToken, "db")
		has(next, "db")
		has(archiveToken, "")
		write("db: " + next)
		has(dbToken, "")
		has(next, "db")
		assert.Empty(t, log.String())

		for _, bad := range []string{"", "db: short", "db: " + next + "\ndb"} {
			write(bad)
			for range 3 {
				has(next, "db")
				time.Sleep(time.Second)
			}
		}
		require.NoError(t, os.Remove(name))
		for range 3 {
			time.Sleep(time.Second)
			has(next, "db")
		}
		assert.Equal(t, 4, strings.Count(log.String(), "the last ones stay in force"), log.String())
		write("db: " + dbToken)
		has(dbToken, "db")
		assert.NotContains(t, log.String(), next)
		assert.NotContains(t, log.String(), "short")
	})
}

func TestBadTokens(t *testing.T) {
	_, err := ratekeeper.OpenTokens("/does/not/exist", nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	name := filepath.Join(t.TempDir(), "tokens")
	for text, want := range map[string][]string{
		"":                            {"no lines: want BACKEND: TOKEN"},
		"# only this":                 {"no lines"},
		dbToken:                       {"line 1: invalid name: want BACKEND: TOKEN"},
		": " + dbToken:                {"line 1: invalid name"},
		"db:" + dbToken:               {"line 1: invalid name: want BACKEND: TOKEN"},
		"blob: eu: " + dbToken:        {"line 1: invalid token"},
		"blob: eu :" + dbToken:        {"line 1: invalid token"},
		"a: short\nb: " + dbToken:     {"line 1: invalid token: want 16 characters or more"},
		"a: " + dbToken + " and more": {"line 1: invalid token"},
		"a: " + dbToken + "\n\nb: " + dbToken + "\nc:": {
			"line 3: the token is that of another line", "line 4: invalid name",
		},
		strings.Repeat("x", quota.MaxName+1) + ": " + dbToken: {"line 1: invalid name"},
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		_, err := ratekeeper.OpenTokens(name, nil)
		for _, w := range want {
			require.ErrorContains(t, err, w, text)
		}
		assert.NotContains(t, err.Error(), dbToken)
		assert.NotContains(t, err.Error(), "short")
	}
}
