package shapes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
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
				kill := func(f *services.RedisFailover) { f.Master.Kill() }
				failover(t, loose, loss, kill, func(*services.RedisFailover) {})
			})
		})
	}
}

// TestSentinelFailoverOfAFrozenMaster: connections stay open, and for a while there are two
// masters.
func TestSentinelFailoverOfAFrozenMaster(t *testing.T) {
	t.Parallel()
	loosely.Hold(t, func(loose assert.TestingT) {
		freeze := func(f *services.RedisFailover) { f.Master.Freeze() }
		failover(t, loose, policy.OutageShare, freeze, func(f *services.RedisFailover) {
			time.Sleep(200 * time.Millisecond)
			f.Master.Thaw()
		})
	})
}

// failover drains while die ends the master. The state of the new master is half a second old, so
// that it counts as lost. failover calls elected when there is a new master.
func failover(
	t *testing.T, loose assert.TestingT, loss policy.OnOutage, die, elected func(*services.RedisFailover),
) {
	t.Helper()
	const rate = 1000
	f := services.RedisSentinel(t, 300*time.Millisecond)
	var died, back time.Time
	var inc int64
	master := open(t, f.Master.URL)
	p := policy.Policy{MessageRate: policy.PerSecond(rate), OnOutage: loss}
	r := drain(t, 4, f.URL, p, func(key string) {
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
	t.Logf("outage %v with %d messages, longest gap %v; %d messages in the second second after it; "+
		"at most %d in any second; longest allocation %v",
		away, r.between(died, away), r.gap(), after, r.window(), r.longest)
	assert.NotEqual(t, inc, r.state.Inc, "the state was not lost")
	const slack = 150 * time.Millisecond
	assert.Less(loose, r.longest, permits.MaxTimeout+slack, "an allocation takes at most its time-out")
	limit := rate * 127 / 100 // rate x (1 s + 0.15 s), and 12 % that others hold
	if loss == policy.OutageShare {
		limit += rate / 10 // Limiters that have not found the new master use their last share
	}
	assert.LessOrEqual(t, r.window(), limit)
	assert.GreaterOrEqual(loose, after, rate*80/100)
}

// TestSentinelDiesWithItsMaster: the host of both is lost, and connections to it are not even
// refused.
func TestSentinelDiesWithItsMaster(t *testing.T) {
	t.Parallel()
	loosely.Hold(t, func(loose assert.TestingT) {
		f := services.RedisSentinel(t, 300*time.Millisecond)
		mine := f.Sentinels[0]
		// The store finds the other Sentinels by itself.
		store := &timed{PermitStore: open(t, "redis+sentinel://"+mine.Addr+"?master=throttle")}
		works(t, store)
		mine.Freeze()
		f.Master.Freeze()
		f.Sentinels = f.Sentinels[1:]
		f.Elected()
		elected := time.Now()
		require.Eventually(t, func() bool {
			return allocate(t, store, allocation("throttle:limit:{a}")) == nil
		}, 6*time.Second, 20*time.Millisecond)
		t.Logf("allocations succeed %v after the election, longest %v", time.Since(elected), store.longest)
		assert.Less(loose, store.longest, permits.MaxTimeout+150*time.Millisecond)
	})
}
