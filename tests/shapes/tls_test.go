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
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const password = "ge+heim" // in a URL's password, + is no blank

// refuses checks that every call of a permit store fails. The error must name the reason, must not
// contain the password, and must not be a timeout.
func refuses(t *testing.T, url, want string) {
	t.Helper()
	store, ctx := open(t, url), t.Context()
	for _, call := range []func() error{
		func() error { return allocate(t, store, allocation("throttle:limit:{a}")) },
		func() error { _, _, err := store.State(ctx, "throttle:limit:{a}"); return err },
		func() error { return store.Publish(ctx, "c", "replica", nil, time.Minute) },
		func() error { _, err := store.Published(ctx, "c"); return err },
	} {
		err := patiently(call)
		if assert.ErrorContains(t, err, want, url) {
			assert.NotContains(t, err.Error(), "heim")
		}
	}
}

// patiently calls f until it is not for want of time that it fails, for 30 s at most.
func patiently(f func() error) (err error) {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		err = f()
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) ||
			time.Now().After(end) {
			return err
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
	store := open(t, c.URL+options)
	works(t, store)
	allocations := onEachShard(c)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		store.Do(t.Context(), allocations)
		for _, r := range allocations {
			assert.NoError(c, r.Err)
		}
	}, throttletest.Patience, 50*time.Millisecond)
	c.Migrate(allocations[0].Key, c.Nodes[1], func() { assert.NoError(t, allocate(t, store, allocations[0])) })
	assert.NoError(t, allocate(t, store, allocations[0]))
	refuses(t, c.URL+strings.Replace(options, client.CA, stranger.CA, 1), "certificate signed by unknown authority")
}

func TestRedisSentinelOverTLS(t *testing.T) {
	t.Parallel()
	server, client := services.TLS(t)
	_, stranger := services.TLS(t)
	f := services.RedisSentinelTLS(t, 300*time.Millisecond, server)
	options := "&ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	store := open(t, f.URL+options)
	works(t, store)
	f.Master.Kill()
	f.Elected()
	works(t, store)
	refuses(t, f.URL+strings.Replace(options, client.CA, stranger.CA, 1), "certificate signed by unknown authority")
}
