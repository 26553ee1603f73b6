package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const (
	outageRate = 1000 // of the limit, messages a second
	outageRuns = 5    // of each outage
)

// An outage is a way in which Redis is unavailable for a while, or loses the limit's schedule.
type outage struct {
	name  string
	do    func(t *testing.T, s *target)
	least float64 // bound for what is dispatched meanwhile, percent
}

// every does something n times, that far apart.
func every(d time.Duration, n int, do func(t *testing.T, s *target)) func(*testing.T, *target) {
	return func(t *testing.T, s *target) {
		for range n {
			do(t, s)
			time.Sleep(d)
		}
	}
}

// sends returns what sends a command to the Redis.
func sends(args ...any) func(*testing.T, *target) {
	return func(t *testing.T, s *target) { command(t, s, args...) }
}

var outages = []outage{
	{"frozen for 2 s", freezes(2 * time.Second), 97},
	{"frozen for 12 s", freezes(12 * time.Second), 97},
	{"frozen for 2 s every 5 s", every(3*time.Second, 4, freezes(2*time.Second)), 97},
	{"killed, back empty after 3 s", restarts, 97},
	{"FLUSHALL five times, each 300 ms", every(300*time.Millisecond, 5, sends("FLUSHALL")), 95},
	{"out of memory for 3 s", outOfMemory, 97},
	{"evicts keys for 3 s", evicts, 97},
	{"a replica for 3 s", becomesReplica, 97},
	{"SCRIPT FLUSH five times, each 300 ms", every(300*time.Millisecond, 5, sends("SCRIPT", "FLUSH")), 97},
	{
		"CLIENT KILL ten times, each 100 ms",
		every(100*time.Millisecond, 10, sends("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")), 97,
	},
}

// TestAccuracyOutages: four replicas use a limit with `onOutage: share` while Redis is unavailable.
func TestAccuracyOutages(t *testing.T) {
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			accuracy.Measure(t, func(m *accuracy.M) {
				var seconds, meanwhile, slowest []float64
				for range outageRuns {
					r := o.run(t)
					seconds = append(seconds, float64(r.most)/outageRate*100)
					meanwhile = append(meanwhile, r.used)
					slowest = append(slowest, float64(r.slowest)/float64(time.Millisecond))
				}
				slices.Sort(seconds)
				slices.Sort(meanwhile)
				slices.Sort(slowest)
				m.AtMost("any second, median, %", seconds[outageRuns/2], 107)
				m.AtMost("any second, worst, %", seconds[outageRuns-1], 110)
				m.AtLeast("dispatched meanwhile, median, %", meanwhile[outageRuns/2], o.least)
				m.AtMost("slowest call, median, ms", slowest[outageRuns/2], 250)
			})
		})
	}
}

// An outageRun is what an outage did.
type outageRun struct {
	most    int     // messages in any second
	used    float64 // of the limit, from the outage on until a second after it, percent
	slowest time.Duration
}

func (o outage) run(t *testing.T) (r outageRun) {
	t.Helper()
	s := oneRedis(t)
	var policies permitstest.Policies
	policies.Set(throttletest.SetOf(t, fmt.Sprint("kafka://public/default/orders messageRate=", outageRate)))
	record := window.NewRecord()
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var mu sync.Mutex // guards waits
	type wait struct{ from, to time.Duration }
	var waits []wait
	for replica := range replicas {
		store, err := throttle.OpenPermits(s.redis.URL)
		require.NoError(t, err)
		lim, err := dispatch.Open(ctx, dispatch.Config{
			Policies: &policies, Permits: store, Cluster: cluster, OnClose: store.Close,
		})
		require.NoError(t, err)
		defer func() { assert.NoError(t, lim.Close()) }()
		sub, err := lim.Subscription("kafka://public/default/orders", "billing")
		require.NoError(t, err)
		callers.Go(func() {
			for {
				from := record.Now()
				g, err := sub.Acquire(ctx, 1)
				if err != nil {
					return
				}
				record.Add(replica, g.N())
				mu.Lock()
				waits = append(waits, wait{from, record.Now()})
				mu.Unlock()
			}
		})
	}
	defer callers.Wait()
	defer stop()
	time.Sleep(settled + time.Second)
	from := record.Now()
	o.do(t, s)
	time.Sleep(time.Second)
	end := record.Now()
	time.Sleep(time.Second)
	stop()
	callers.Wait()
	r.most = record.Max(time.Second, from-time.Second)
	n := 0
	for _, e := range record.Events() {
		if e.At >= from && e.At < end {
			n += e.N
		}
	}
	r.used = 100 * float64(n) / (outageRate * (end - from).Seconds())
	for _, w := range waits {
		if w.to >= from {
			r.slowest = max(r.slowest, w.to-w.from)
		}
	}
	t.Logf("any second %d, meanwhile %.1f %%, slowest call %v", r.most, r.used, r.slowest)
	return r
}
