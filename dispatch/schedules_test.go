package dispatch_test

import (
	"context"
	"net"
	"os"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/tests/tables"
)

// The guarantees of every sharing mode hold under random schedules. With THROTTLE_TALLIES=FILE,
// what they did is added to a file and, with THROTTLE_TABLE=FILE, the sums are written into a
// document.
func TestSchedules(t *testing.T) {
	tallies := os.Getenv("THROTTLE_TALLIES")
	if doc := os.Getenv("THROTTLE_TABLE"); doc != "" {
		t.Cleanup(func() {
			assert.NoError(t, tables.Write(doc, "schedules", permitstest.Table(t, tallies)))
		})
	}
	permitstest.Run(t, permitstest.Backend{Tallies: tallies}, permitstest.Seeds(t, permitstest.Quarter(24), 300))
}

// The same with the script that runs in Redis.
func TestSchedulesOnRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("Lua in Go takes long with the race detector")
	}
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
	}}, permitstest.Seeds(t, 2, 40))
}
