package processes

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

const replicas = 8

// TestOneLimitOverProcesses: eight processes never exceed a limit, and reach it.
func TestOneLimitOverProcesses(t *testing.T) {
	redis := services.Redis(t)
	for _, rate := range []int64{1000, 100_000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			const d = 4 * time.Second
			loosely.Hold(t, func(loose assert.TestingT) {
				r := run(t, redis, replicas, d, job{Rate: rate, Max: 1}, nil)
				first := r.events[0].at
				got := r.count(-1, first, first+d-100*time.Millisecond)
				t.Logf("%d of %d, at most %d in any second, %.4f requests a message, timers late by %v (p99)",
					got, rate*39/10, r.window(), r.requestsPerMessage(), percentile(r.lateness, 0.99))
				assert.LessOrEqual(t, float64(r.window()), 1.25*float64(rate), "rate x (1 s + 0.25 s)")
				assert.GreaterOrEqual(loose, float64(got), 0.9*float64(rate)*3.9)
				for i := range replicas {
					share := float64(r.count(i, time.Second, d)) / float64(r.count(-1, time.Second, d))
					assert.InDelta(loose, 0.125, share, 0.04, "share of process %d", i)
				}
			})
		})
	}
}

// TestStrictOverProcesses: eight processes together make one call every 200 ms, on each permit
// store that processes can share.
func TestStrictOverProcesses(t *testing.T) {
	t.Parallel()
	for name, permits := range map[string]func(testing.TB) string{"redis": services.Redis, "etcd": services.EtcdURL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const d, period = 8 * time.Second, 200 * time.Millisecond
			least := int(d/period) * map[string]int{"redis": 80, "etcd": 40}[name] / 100
			loosely.Hold(t, func(loose assert.TestingT) {
				r := run(t, permits(t), replicas, d, job{Rate: 5, Max: 1, Sharing: policy.Strict}, nil)
				shortest, n := r.gaps(0, d)
				t.Logf("%d calls, at least %v apart, %.2f requests a call", n, shortest, r.requestsPerMessage())
				r.apart(t, loose, period)
				assert.GreaterOrEqual(loose, n, least, "a slot is lost if its answer is late")
				for i := range replicas {
					assert.GreaterOrEqual(loose, r.count(i, 0, d), int(d/period)/replicas/3, "process %d", i)
				}
			})
		})
	}
}

// TestQueueOverProcesses: eight processes queue for slots, with two slots allocated ahead. One
// process is killed.
func TestQueueOverProcesses(t *testing.T) {
	t.Parallel()
	const d, rate = 8 * time.Second, 20
	loosely.Hold(t, func(loose assert.TestingT) {
		base := job{Rate: rate, Max: 1, Sharing: policy.Strict, Wait: policy.WaitQueue, MaxReserved: new(int64(2))}
		r := run(t, services.Redis(t), replicas, d, base, func(i int, j *job) {
			if i == 0 {
				j.End, j.Kill = j.Start.Add(d/2), true
			}
		})
		shortest, n := r.gaps(0, d)
		by := make([]int, replicas)
		for i := range by {
			by[i] = r.count(i, 0, d)
		}
		t.Logf("%d calls, at least %v apart, by process %v, %.2f requests a call", n, shortest, by,
			r.requestsPerMessage())
		r.apart(t, loose, time.Second/rate)
		const begin = 2 * time.Second // a new strict schedule starts after a period and a second
		assert.GreaterOrEqual(loose, r.count(-1, begin, d), int((d-begin).Seconds()*rate)*85/100,
			"a slot is lost if its answer is late")
		assert.GreaterOrEqual(loose, slices.Min(by[1:]), slices.Max(by[1:])*80/100, "they take turns")
	})
}

// TestSplitOverProcesses: a limit is split by four processes, then by seven, then by one after the
// others stopped or were killed. They never exceed the limit plus the pool size, and soon use the
// whole limit again.
func TestSplitOverProcesses(t *testing.T) {
	t.Parallel()
	const rate, phase = 500, 5 * time.Second
	stores := map[string]func(testing.TB) string{"redis": services.Redis}
	if permitstest.Long() {
		stores = map[string]func(testing.TB) string{"etcd": services.EtcdURL}
	}
	for name, permits := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loosely.Hold(t, func(loose assert.TestingT) {
				base := job{Rate: rate, Max: 1 << 20, Sharing: policy.Split}
				r := run(t, permits(t), 7, 3*phase, base, func(i int, j *job) {
					switch {
					case i >= 4:
						j.Delay = phase
					case i == 0:
						j.End, j.Kill = j.Start.Add(2*phase), true
					}
					if i >= 2 {
						j.End = j.Start.Add(2 * phase)
					}
				})
				for k, size := range []int{4, 7, 1} {
					from := time.Duration(k)*phase + poolTTL + 500*time.Millisecond
					n := r.count(-1, from, from+2*time.Second)
					t.Logf("%d processes: %d in two seconds", size, n)
					assert.GreaterOrEqual(loose, n, 2*rate*85/100)
					assert.LessOrEqual(t, n, 2*rate+size+rate/100, "the limit, the pool size, timers 10 ms late")
				}
				assert.LessOrEqual(t, r.window(), rate*125/100+7, "rate x (1 s + 0.25 s), and the pool size")
			})
		})
	}
}

// TestGroupsOverProcesses: two worker groups of six and two processes get half of the limit each.
// When all members of one group are killed, the other group does not take its permits: a silent
// group may be cut off.
func TestGroupsOverProcesses(t *testing.T) {
	t.Parallel()
	const rate, d = 500, 10 * time.Second
	loosely.Hold(t, func(loose assert.TestingT) {
		base := job{Rate: rate, Max: 10, Sharing: policy.Groups}
		r := run(t, services.Redis(t), replicas, d, base, func(i int, j *job) {
			if j.Group = "eu"; i >= 6 {
				j.Group, j.End, j.Kill = "us", j.Start.Add(d/2), true
			}
		})
		of := func(from, to time.Duration, first, last int) (n int) {
			for i := first; i <= last; i++ {
				n += r.count(i, from, to)
			}
			return n
		}
		eu, us := of(time.Second, 4*time.Second, 0, 5), of(time.Second, 4*time.Second, 6, 7)
		alone := of(7*time.Second, 9*time.Second, 0, 5)
		t.Logf("three seconds: eu %d, us %d; two seconds without us: eu %d; at most %d in any second, "+
			"%.3f requests a message", eu, us, alone, r.window(), r.requestsPerMessage())
		assert.InDelta(loose, 3*rate/2, eu, 3*rate/2*0.15)
		assert.InDelta(loose, 3*rate/2, us, 3*rate/2*0.15)
		assert.GreaterOrEqual(loose, alone, 2*rate/2*85/100, "its own half")
		assert.LessOrEqual(t, alone, 2*rate/2+rate/10, "no more than its own half")
		assert.LessOrEqual(t, r.window(), rate*18/10+replicas, "rate x (1 s + 0.8 s)")
	})
}
