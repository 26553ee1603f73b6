package redispermits_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
)

// TestQuiet: a permit store whose server is unavailable writes nothing to standard error, and
// leaves what other clients write.
func TestQuiet(t *testing.T) {
	const env = "THROTTLE_TEST_QUIET"
	const addr = "127.0.0.1:1" // nothing listens there
	switch os.Getenv(env) {
	case "other":
		client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
		defer func() { assert.NoError(t, client.Close()) }()
		require.Error(t, client.Ping(t.Context()).Err())
		return
	case "single", "cluster":
		store := redispermits.Open(redis.UniversalOptions{
			Addrs: []string{addr}, IsClusterMode: os.Getenv(env) == "cluster",
		}, 10*time.Second)
		defer func() { assert.NoError(t, store.Close()) }()
		for range 3 {
			_, err := permitstest.Allocate(t.Context(), store, "throttle:limit:{a}", request(1))
			require.ErrorContains(t, err, "dial tcp "+addr+": connect: connection refused")
		}
		return
	}
	stderr := func(what string) string {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestQuiet$")
		cmd.Env = append(os.Environ(), env+"="+what)
		var text strings.Builder
		cmd.Stderr = &text
		out, err := cmd.Output()
		require.NoError(t, err, string(out))
		return text.String()
	}
	assert.Contains(t, stderr("other"), "failed to dial")
	assert.Empty(t, stderr("single"))
	assert.Empty(t, stderr("cluster"))
}
