package shapes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestSentinelFailover: the master is killed while Limiters drain.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	for _, loss := range []policy.OnOutage{policy.OutageStop, policy.OutageShare} {
		t.Run(string(loss), func(t *testing.T) {
			t.Parallel()
			loosely.Hold(t, func(loose assert.TestingT) {
				failover(t, loose, loss, func(f *services.RedisFailover) { f.Master.Kill() }, func(*services.RedisFailover) {})
			})
		})
	}
}

// TestSentinelFailoverOfAFrozenMaster: connections stay open, and one master too many is there for a while.
func TestSentinelFailoverOfAFrozenMaster(t *testing.T) {
	t.Parallel()
	loosely.Hold(t, func(loose assert.TestingT) {
		failover(t, loose, policy.OutageShare, func(f *services.RedisFailover) { f.Master.Freeze() }, func(f *services.RedisFailover) {
			time.Sleep(200 * time.Millisecond)
			f.Master.Thaw()
		})
	})
}

// failover drains through the loss of a master by die. What the replica becomes master with is half a second old, and as
// good as lost. elected is called when it is the master.
func failover(t *testing.T, loose assert.TestingT, loss policy.OnOutage, die, elected func(*services.RedisFailover)) {
	t.Helper()
	const rate = 1000
	f := services.RedisSentinel(t, 300*time.Millisecond)
	var died, back time.Time
	var inc int64
	master := open(t, f.Master.URL)
	r := drain(t, 4, f.URL, policy.Policy{MessageRate: policy.PerSecond(rate), OnOutage: loss}, func(key string) {
		time.Sleep(1500 * time.Millisecond)
		f.Detach()
		time.Sleep(500 * time.Millisecond)
		s, _, err := master.State(t.Context(), key)
		require.NoError(t, err)
		inc = s.Inc
		died = time.Now()
		die(f)
		f.Elected()
		back = time.Now()
		elected(f)
		time.Sleep(time.Until(back.Add(2500 * time.Millisecond)))
	})
	away, after := back.Sub(died), r.between(back.Add(time.Second), time.Second)
	t.Logf("away %v, meanwhile %d messages, nothing for %v; %d in the second after the next; any second %d; longest allocation %v",
		away, r.between(died, away), r.gap(), after, r.window(), r.longest)
	assert.NotEqual(t, inc, r.state.Inc, "nothing was lost")
	assert.Less(loose, r.longest, redispermits.DefaultTimeout+150*time.Millisecond, "an allocation takes its time-out, and what the machine adds")
	most := rate * 127 / 100 // rate x (1 s + 0.15 s), and 12 % that others hold
	if loss == policy.OutageShare {
		most += rate / 10 // until the last Limiter has found the new master, it goes on beside those that allocate there
	}
	assert.LessOrEqual(t, r.window(), most)
	assert.GreaterOrEqual(loose, after, rate*80/100)
}

// TestSentinelDiesWithItsMaster: the host of both is gone, and nothing on it even refuses a connection.
func TestSentinelDiesWithItsMaster(t *testing.T) {
	t.Parallel()
	loosely.Hold(t, func(loose assert.TestingT) {
		f := services.RedisSentinel(t, 300*time.Millisecond)
		mine := f.Sentinels[0]
		store := &timed{PermitStore: open(t, "redis+sentinel://"+mine.Addr+"?master=throttle")} // the others it finds by itself
		works(t, store)
		mine.Freeze()
		f.Master.Freeze()
		f.Sentinels = f.Sentinels[1:]
		f.Elected()
		elected := time.Now()
		require.Eventually(t, func() bool { return allocate(t, store, allocation("throttle:limit:{a}")) == nil }, 6*time.Second, 20*time.Millisecond)
		t.Logf("allocations are made again %v after the election, longest allocation %v", time.Since(elected), store.longest)
		assert.Less(loose, store.longest, redispermits.DefaultTimeout+150*time.Millisecond)
	})
}
