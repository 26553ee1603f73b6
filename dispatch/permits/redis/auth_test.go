package redispermits_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestUnknownAuth: a server, or a Sentinel, that does not know AUTH repeats the password in its
// error; the store does not.
func TestUnknownAuth(t *testing.T) {
	const user, password = "bob", "geheim123"
	server := services.RedisServer(t, "--rename-command", "AUTH", "", "--rename-command", "HELLO", "")
	for name, store := range map[string]*redispermits.Store{
		"server": redispermits.Open(redis.UniversalOptions{
			Addrs: []string{server.Addr}, Username: user, Password: password,
		}, 10*time.Second),
		"Sentinel": redispermits.Open(redis.UniversalOptions{Addrs: []string{server.Addr}, MasterName: "m"},
			10*time.Second, redispermits.WithSentinels(redispermits.Sentinels{
				Username: user, Password: func() (string, error) { return password, nil },
			})),
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { assert.NoError(t, store.Close()) }()
			_, err := permitstest.Allocate(t.Context(), store, "limit", request(1))
			require.ErrorContains(t, err, "unknown command")
			assert.NotContains(t, err.Error(), user)
			assert.NotContains(t, err.Error(), password)
		})
	}
}

// TestErrorsOfAllCalls: what keeps a pipeline from being sent is the error of each request in it.
func TestErrorsOfAllCalls(t *testing.T) {
	server := services.RedisServer(t, "--requirepass", "geheim123")
	store := redispermits.Open(redis.UniversalOptions{Addrs: []string{server.Addr}, Password: "wrong"}, 10*time.Second)
	defer func() { assert.NoError(t, store.Close()) }()
	var requests []*permits.Request
	for _, key := range []string{"throttle:{a}", "throttle:{b}", "throttle:{c}"} {
		requests = append(requests, &permits.Request{Key: key, Allocate: &permits.Allocate{Request: request(1)}})
	}
	store.Do(t.Context(), requests)
	for _, r := range requests {
		assert.ErrorContains(t, r.Err, "WRONGPASS", r.Key)
	}
}
