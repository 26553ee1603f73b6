package shapes

import (
	"strings"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// A slowCase is a limit on a permit store that answers later than the default time-out.
type slowCase struct {
	name, scheme    string
	rate            int64
	sharing         policy.Sharing
	rtt             time.Duration
	atLeast, atMost float64 // percent of the limit: on average, and in any second
}

var slowCases = []slowCase{
	{"redis, fair", "redis", 400, policy.Sharing{}, 250 * ms, 90, 115},
	{"redis, fair, farther", "redis", 400, policy.Sharing{}, 450 * ms, 90, 120},
	{"redis, strict", "redis", 4, policy.Sharing{Mode: policy.Strict}, 250 * ms, 90, 125},
	{"redis, split", "redis", 400, policy.Sharing{Mode: policy.Split}, 250 * ms, 90, 111},
	{"etcd, fair", "etcd", 400, policy.Sharing{}, 50 * ms, 90, 115},
	{"etcd, fair, farther", "etcd", 400, policy.Sharing{}, 250 * ms, 40, 120},
}

const ms = time.Millisecond

// drain runs three Limiters far from their permit store until disturb returns.
func (c slowCase) drain(t *testing.T, disturb func(r *run)) *run {
	t.Helper()
	var upstream string
	if c.scheme == "etcd" {
		upstream = services.Etcd(t).Endpoint
	} else {
		upstream = services.RedisServer(t).Addr
	}
	p := services.NewProxy(t, upstream)
	p.Latency(c.rtt / 2)
	limit := stop(c.rate)
	limit.Sharing = c.sharing
	return drain(t, 3, c.scheme+"://"+p.Addr, limit, func(r *run, _ string) { disturb(r) })
}

// TestSlowStore: Limiters get permits of a store that answers later than the default time-out, and
// never more than their limit allows. Their slack is larger, since a round takes three requests.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	for _, c := range slowCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// At twice the limit, these would exceed it, though a split pool is used only after 5 s.
			r := c.drain(t, func(r *run) { r.more(t, int(16*c.atLeast/100*float64(c.rate))) })
			extra := 0.0
			if strings.HasSuffix(c.name, "split") {
				extra = 3 // the pool size
			}
			r.neverOver(t, float64(c.rate), slack+9*c.rtt/2, extra)
		})
	}
}
