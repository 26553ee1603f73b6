package dispatch_test

import (
	"context"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch"
	redisledger "github.com/dispatchthrottle/throttle/dispatch/ledger/redis"
	"github.com/dispatchthrottle/throttle/dispatch/ledgertest"
)

// What every way to share promises holds under random schedules.
func TestSchedules(t *testing.T) {
	ledgertest.Run(t, ledgertest.Backend{}, ledgertest.Seeds(t, 40, 300))
}

// The same on the script that runs in Redis.
func TestSchedulesOnRedis(t *testing.T) {
	ledgertest.Run(t, ledgertest.Backend{Open: func(t *testing.T) dispatch.Ledger {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(server.Close)
		ledger := redisledger.Open(redis.UniversalOptions{
			Addrs:  []string{"in memory"},
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		}, ledgertest.Timeout)
		t.Cleanup(func() { assert.NoError(t, ledger.Close()) })
		return ledger
	}}, ledgertest.Seeds(t, 3, 40))
}
