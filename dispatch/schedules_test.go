package dispatch_test

import (
	"context"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
)

// The guarantees of every sharing mode hold under random schedules.
func TestSchedules(t *testing.T) {
	permitstest.Run(t, permitstest.Backend{}, permitstest.Seeds(t, 40, 300))
}

// The same with the script that runs in Redis.
func TestSchedulesOnRedis(t *testing.T) {
	permitstest.Run(t, permitstest.Backend{Open: func(t *testing.T) dispatch.PermitStore {
		server := miniredis.NewMiniRedis()
		permitstest.AddStruct(t, server)
		server.ClockTTL(true)
		permits := redispermits.Open(redis.UniversalOptions{
			Addrs:  []string{"in memory"},
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		}, permitstest.Timeout)
		t.Cleanup(func() { assert.NoError(t, permits.Close()) })
		return permits
	}}, permitstest.Seeds(t, 3, 40))
}
