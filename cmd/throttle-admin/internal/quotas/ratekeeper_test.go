package quotas

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestRatekeeperAddresses: metrics have the address of reports, or one of their own; reports need
// tokens.
func TestRatekeeperAddresses(t *testing.T) {
	dir := t.TempDir()
	const token = "open-sesame-1234"
	require.NoError(t, os.WriteFile(dir+"/tokens", []byte("db: "+token), 0o600))
	require.NoError(t, os.Chmod(dir+"/tokens", 0o644))
	permits := services.Redis(t)
	run := func(want string, f func(addresses []string), args ...string) {
		t.Helper()
		var log throttletest.Log
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			args := append([]string{"ratekeeper", "--policies", "file:" + dir + "/policies.yaml", "--permits", permits,
				"--cluster", services.Name(t)}, args...)
			assert.Zero(t, cli.Run(ctx, args, strings.NewReader(""), io.Discard, &log, Commands), &log)
		})
		defer running.Wait()
		defer stop()
		var found [][]string
		serving := regexp.MustCompile(want)
		require.Eventually(t, func() bool {
			found = serving.FindAllStringSubmatch(log.String(), -1)
			return found != nil
		}, throttletest.Patience, 10*time.Millisecond, &log)
		f(found[0][1:])
		exposed := strings.Count(log.String(), dir+"/tokens: mode 0644 lets others")
		plain := strings.Count(log.String(), "the tokens go over the network in plaintext")
		all := strings.Join(args, " ")
		assert.Equal(t, strings.Contains(all, "tokens"), exposed == 1, &log)
		assert.Equal(t, strings.Contains(all, "0.0.0.0"), plain == 1, &log)
		assert.NotContains(t, log.String(), token)
	}
	status := func(address, path string) int {
		got, err := http.Get("http://" + address + path)
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
		return got.StatusCode
	}
	run(`serving http://(.*)/reports and /metrics\n`, func(at []string) {
		assert.Equal(t, http.StatusOK, status(at[0], "/metrics"))
		assert.Equal(t, http.StatusUnauthorized, status(at[0], "/reports"))
	}, "--listen", "127.0.0.1:0", "--tokens", dir+"/tokens")
	run(`serving http://(.*)/metrics\n.*\n?.*serving http://(.*)/reports\n`, func(at []string) {
		assert.Equal(t, http.StatusOK, status(at[0], "/metrics"))
		assert.Equal(t, http.StatusNotFound, status(at[0], "/reports"))
		assert.Equal(t, http.StatusNotFound, status(at[1], "/metrics"))
		assert.Equal(t, http.StatusUnauthorized, status(at[1], "/reports"))
	}, "--listen", "0.0.0.0:0", "--tokens", dir+"/tokens", "--metrics", "127.0.0.1:0")
	run(`serving http://(.*)/metrics\n`, func(at []string) {
		assert.Equal(t, http.StatusOK, status(at[0], "/metrics"))
	}, "--metrics", "127.0.0.1:0")
}
