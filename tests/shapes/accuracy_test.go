package shapes

import (
	"slices"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	etcdpermits "github.com/dispatchthrottle/throttle/dispatch/permits/etcd"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const s = time.Second

// percent returns n in percent of what a rate gives in d.
func percent(n int, rate int64, d time.Duration) float64 {
	return 100 * float64(n) / (float64(rate) * d.Seconds())
}

func inMS(d time.Duration) float64 { return float64(d) / float64(ms) }

// TestAccuracyCluster: the slot of a limit moves to another shard of a Redis Cluster and back.
func TestAccuracyCluster(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		const rate = 1000
		c := services.RedisCluster(t)
		var moved, end time.Time
		r := drain(t, 4, c.URL, stop(rate), func(_ *run, key string) {
			home := c.Owner(key)
			time.Sleep(s)
			moved = time.Now()
			c.Migrate(key, c.Nodes[(slices.Index(c.Nodes, home)+1)%3], func() { time.Sleep(200 * ms) })
			time.Sleep(500 * ms)
			c.Migrate(key, home, nil)
			time.Sleep(1500 * ms)
			end = time.Now()
		})
		d := end.Sub(moved)
		m.AtLeast("used from the move on, %", percent(r.between(moved, d), rate, d), 80)
		m.AtMost("any second, %", percent(r.window(), rate, s), 111)
	})
}

// TestAccuracyLostShard: one of three shards is lost.
func TestAccuracyLostShard(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		const calls = 50
		store, allocations := losesAShard(t)
		start := time.Now()
		for range calls {
			store.Do(t.Context(), allocations)
		}
		m.AtMost("a call for all shards, ms", inMS(time.Since(start)/calls), 50)
	})
}

// TestAccuracyFailover: the master behind Sentinels ends.
func TestAccuracyFailover(t *testing.T) {
	t.Parallel()
	for name, c := range failoverCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				f := c.failOver(t, func(*run) { time.Sleep(2500 * ms) })
				m.AtMost("longest request, ms", inMS(f.longest), inMS(permits.MaxTimeout)+150)
				m.AtMost("any second, %", percent(f.window(), failoverRate, s), 127)
				m.AtLeast("used in the second second after it, %",
					percent(f.between(f.back.Add(s), s), failoverRate, s), 80)
			})
		})
	}
}

// TestAccuracyLostSentinel: the host of the master and of the store's own Sentinel is lost.
func TestAccuracyLostSentinel(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		store := diesWithSentinel(t)
		elected := time.Now()
		works(t, store)
		m.AtMost("until permits are allocated again, s", time.Since(elected).Seconds(), 6)
		m.AtMost("longest request, ms", inMS(store.longest), inMS(permits.MaxTimeout)+150)
	})
}

// TestAccuracyFrozenEtcd: an etcd with a password cannot be reached.
func TestAccuracyFrozenEtcd(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		_, url := frozenEtcd(t)
		m.AtMost("longest request, ms", inMS(frozenCalls(t, openTimed(t, url))), inMS(etcdpermits.DefaultTimeout)+150)
	})
}

// TestAccuracyDataCentres: one of three data centres is cut off.
func TestAccuracyDataCentres(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		c, end := drainCentres(t)
		defer end()
		c.more(1, 0, 1, 2)
		c.cluster.Isolate(1)
		time.Sleep(2 * s) // for the election, timeouts, and permits allocated before
		time.Sleep(3 * s)
		m.AtMost("messages of the one that is cut off", float64(c.lately(1, 3*s)), 0)
		m.AtLeast("used by the others, %", percent(c.lately(0, 3*s)+c.lately(2, 3*s), centresRate, 3*s), 85)
		c.cluster.Heal()
		healed := time.Now()
		throttletest.Until(m, "each has a share again", func() bool {
			return min(c.lately(0, s), c.lately(1, s), c.lately(2, s)) > centresRate/6
		})
		m.AtMost("until it has its share again, s", time.Since(healed).Seconds(), 10)
		m.AtMost("any second, %", percent(window.Max(s, c.all()), centresRate, s), 125)
	})
}

// TestAccuracySlowStore: three replicas whose permit store is far away.
func TestAccuracySlowStore(t *testing.T) {
	t.Parallel()
	for _, c := range slowCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				const settle, d = 6 * s, 5 * s
				var from time.Time
				r := c.drain(t, func(*run) {
					time.Sleep(settle)
					from = time.Now()
					time.Sleep(d)
				})
				m.AtLeast("used, %", percent(r.between(from, d), c.rate, d), c.atLeast)
				m.AtMost("any second, %", percent(r.window(), c.rate, s), c.atMost)
			})
		})
	}
}
