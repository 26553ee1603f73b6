package shapes

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestSlowStore: a limit is used in full, and hardly exceeded, on a permit store that answers later
// than the default time-out. A second may have rate x (1 s + 1.5 rounds), and a round takes three
// requests: what must never be exceeded is less than that.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	redis, etcd := strings.TrimPrefix(services.Redis(t), "redis://"), services.Etcd(t)
	for _, c := range []struct {
		name, scheme, upstream string
		rate                   int64
		sharing                policy.Sharing
		rtt                    time.Duration
		atLeast, atMost, never int // percent of the limit: on average, and in any second
	}{
		{"redis, fair", "redis://", redis, 400, policy.Sharing{}, 250 * ms, 90, 115, 125},
		{"redis, fair, farther", "redis://", redis, 400, policy.Sharing{}, 450 * ms, 90, 120, 150},
		{"redis, strict", "redis://", redis, 4, policy.Sharing{Mode: policy.Strict}, 250 * ms, 90, 100, 100},
		{"redis, split", "redis://", redis, 400, policy.Sharing{Mode: policy.Split}, 250 * ms, 90, 111, 111},
		{"etcd, fair", "etcd://", etcd.Endpoint, 400, policy.Sharing{}, 50 * ms, 90, 115, 125},
		{"etcd, fair, farther", "etcd://", etcd.Endpoint, 400, policy.Sharing{}, 250 * ms, 40, 120, 150},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			loosely.Hold(t, func(loose assert.TestingT) {
				p := services.NewProxy(t, c.upstream)
				p.Latency(c.rtt / 2)
				const settle, d = 6 * time.Second, 5 * time.Second
				var from time.Time
				limit := policy.Policy{
					MessageRate: policy.PerSecond(c.rate), Sharing: c.sharing, OnOutage: policy.OutageStop,
				}
				r := drain(t, 3, c.scheme+p.Addr, limit, func(string) {
					time.Sleep(settle)
					from = time.Now()
					time.Sleep(d)
				})
				n := r.between(from, d)
				t.Logf("%d of %d, any second %d, longest request %v", n, int64(d/time.Second)*c.rate,
					r.window(), r.longest)
				assert.LessOrEqual(t, r.window(), int(c.rate)*c.never/100+1)
				assert.LessOrEqual(loose, r.window(), int(c.rate)*c.atMost/100+1)
				assert.GreaterOrEqual(loose, n, int(d/time.Second)*int(c.rate)*c.atLeast/100)
			})
		})
	}
}
