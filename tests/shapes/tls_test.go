package shapes

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/services"
)

const password = "ge+heim" // in a URL's password, + is no blank

// refuses checks that every call of a permit store fails. The error must name the reason, must not
// contain the password, and must not be a timeout.
func refuses(t *testing.T, url, want string) {
	t.Helper()
	permits, ctx := open(t, url), t.Context()
	for _, call := range []func() error{
		func() error { return allocate(t, permits, allocation("throttle:{a}")) },
		func() error { _, _, err := permits.State(ctx, "throttle:{a}"); return err },
		func() error { return permits.Publish(ctx, "c", "replica", nil, time.Minute) },
		func() error { _, err := permits.Published(ctx, "c"); return err },
	} {
		var err error
		assert.Eventually(t, func() bool {
			err = call()
			return !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded)
		}, 5*time.Second, time.Millisecond)
		if assert.ErrorContains(t, err, want, url) {
			assert.NotContains(t, err.Error(), "heim")
		}
	}
}

func TestRedisOverTLS(t *testing.T) {
	t.Parallel()
	server, client := services.TLS(t)
	_, stranger := services.TLS(t)
	r := services.RedisTLS(t, server, "--requirepass", password)
	files := "&ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	options := "?password-file=" + secret(t, password) + files
	_, addr, _ := strings.Cut(r.URL, "://")

	works(t, open(t, r.URL+options))
	works(t, open(t, "redis://:"+password+"@"+addr+"?"+files[1:]))
	refuses(t, r.URL+strings.Replace(options, client.CA, stranger.CA, 1), "certificate signed by unknown authority")
	refuses(t, "rediss://:"+password+"@"+addr, "certificate signed by unknown authority")
	refuses(t, "rediss://:"+password+"@"+addr+"?ca="+client.CA, "certificate required")
	refuses(t, r.URL+options+"&server-name=another", "wanted to match another")
}

func TestRedisClusterOverTLS(t *testing.T) {
	t.Parallel()
	server, client := services.TLS(t)
	_, stranger := services.TLS(t)
	c := services.RedisClusterTLS(t, server)
	options := "?ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	permits := open(t, c.URL+options)
	works(t, permits)
	allocations := onEachShard(c)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, b := range permits.Allocate(t.Context(), allocations) {
			assert.NoError(c, b.Err)
		}
	}, 5*time.Second, 50*time.Millisecond)
	c.Migrate(allocations[0].Key, c.Nodes[1], func() { assert.NoError(t, allocate(t, permits, allocations[0])) })
	assert.NoError(t, allocate(t, permits, allocations[0]))
	refuses(t, c.URL+strings.Replace(options, client.CA, stranger.CA, 1), "certificate signed by unknown authority")
}

func TestRedisSentinelOverTLS(t *testing.T) {
	t.Parallel()
	server, client := services.TLS(t)
	_, stranger := services.TLS(t)
	f := services.RedisSentinelTLS(t, 300*time.Millisecond, server)
	options := "&ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	permits := open(t, f.URL+options)
	works(t, permits)
	f.Master.Kill()
	f.Elected()
	works(t, permits)
	refuses(t, f.URL+strings.Replace(options, client.CA, stranger.CA, 1), "certificate signed by unknown authority")
}
