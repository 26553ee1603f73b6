package shapes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// A failoverCase is how a master ends while Limiters drain.
type failoverCase struct {
	onOutage policy.OnOutage
	freeze   bool // connections stay open, and for a while there are two masters
}

var failoverCases = map[string]failoverCase{
	"killed, stop": {policy.OutageStop, false}, "killed, share": {policy.OutageShare, false},
	"frozen": {policy.OutageShare, true},
}

// A failover is what happened when a master ended. The state of the new one is half a second old,
// so that it counts as lost.
type failover struct {
	*run
	died, back time.Time
}

const failoverRate = 1000

// failOver ends the master while Limiters drain, until another is elected and then returns.
func (c failoverCase) failOver(t *testing.T, then func(r *run)) (f failover) {
	t.Helper()
	redis := services.RedisSentinel(t, 300*time.Millisecond)
	master := open(t, redis.Master.URL)
	p := policy.Policy{MessageRate: policy.PerSecond(failoverRate), OnOutage: c.onOutage}
	var inc int64
	f.run = drain(t, 4, redis.URL, p, func(r *run, key string) {
		r.more(t, 1000)
		redis.Detach()
		r.more(t, 500)
		s, _, err := master.State(t.Context(), key)
		require.NoError(t, err)
		inc, f.died = s.Inc, time.Now()
		if c.freeze {
			redis.Master.Freeze()
		} else {
			redis.Master.Kill()
		}
		redis.Elected()
		f.back = time.Now()
		if c.freeze {
			time.Sleep(200 * time.Millisecond) // in which there is one master again
			redis.Master.Thaw()
		}
		then(r)
	})
	assert.NotEqual(t, inc, f.state.Inc, "the state was not lost")
	return f
}

// TestSentinelFailover: Limiters get permits of the new master, and together never more than their
// limit allows and what they held of the lost state.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	for name, c := range failoverCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := c.failOver(t, func(r *run) { r.more(t, 1500) })
			const held, alone = failoverRate * 12 / 100, failoverRate * 10 / 100 // without the store
			f.neverOver(t, failoverRate, slack, held+alone)
		})
	}
}

// diesWithSentinel opens a store by one Sentinel, whose host is lost with that of the master. It
// returns when another master was elected.
func diesWithSentinel(t *testing.T) *timed {
	f := services.RedisSentinel(t, 300*time.Millisecond)
	mine := f.Sentinels[0]
	// The store finds the other Sentinels by itself.
	store := &timed{PermitStore: openTimed(t, "redis+sentinel://"+mine.Addr+"?master=throttle")}
	works(t, store)
	store.longest = 0
	mine.Freeze()
	f.Master.Freeze()
	f.Sentinels = f.Sentinels[1:]
	f.Elected()
	return store
}

// TestSentinelDiesWithItsMaster: the host of both is lost, and connections to it are not even
// refused. The store finds the new master.
func TestSentinelDiesWithItsMaster(t *testing.T) {
	t.Parallel()
	works(t, diesWithSentinel(t))
}
