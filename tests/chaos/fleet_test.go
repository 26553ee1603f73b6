// Package chaos breaks permit stores in all ways that are known, while limits of all sharing modes
// are in use side by side.
package chaos

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A mode is a limit with a sharing mode.
type mode struct {
	sharing  policy.SharingMode
	rate     int
	loose    int           // bound for any second, on a machine that runs nothing else: percent
	hard     int           // bound for any second, on any machine
	recovery time.Duration // bound
}

// modes are the limits. Strict slots are a period apart, and groups may use the permits of two
// periods in one second. Permits are used up to a round later where the machine is too busy to
// release them when they are due, or where answers come late: replicas then allocate for longer in
// advance. A pool that was silent for half of its TTL of 5 s forms again, which takes a TTL.
var modes = []mode{
	{policy.Fair, 400, 111, 125, 3 * time.Second},
	{policy.Strict, 20, 105, 125, 3 * time.Second}, // 21 in a second
	{policy.Split, 400, 111, 125, 7 * time.Second},
	{policy.Groups, 400, 200, 200, 3 * time.Second},
}

// Bounds for the time between two strict permits, which is to be 50 ms.
const (
	looseGap = 45 * time.Millisecond
	hardGap  = 25 * time.Millisecond
)

func (m mode) topic() string { return "kafka://public/default/" + string(m.sharing) }

const (
	replicas = 4
	cluster  = "chaos"
)

// A fleet is four replicas, with a connection each, whose callers want all that the limits allow.
type fleet struct {
	t       *testing.T
	records []*window.Record // by mode
	lims    [replicas]*dispatch.Limiter
	subs    [replicas][]*dispatch.Subscription // by mode
	stop    context.CancelFunc
	callers sync.WaitGroup

	mu      sync.Mutex
	slowest time.Duration // call that does not wait
}

// start starts a fleet whose permits are at a URL, and returns when the store has answered each
// replica and all limits are in use.
func start(t *testing.T, url string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	var lines strings.Builder
	for _, m := range modes {
		f.records = append(f.records, window.NewRecord())
		lines.WriteString(m.topic() + " messageRate=" + strconv.Itoa(m.rate) +
			" sharing.mode=" + string(m.sharing))
		if m.sharing == policy.Groups {
			lines.WriteString(" sharing.groups=eu,us")
		}
		lines.WriteString("\n")
	}
	var policies permitstest.Policies
	policies.Set(throttletest.SetOf(t, lines.String()))
	var ctx context.Context
	ctx, f.stop = context.WithCancel(t.Context())
	for replica := range replicas {
		store, err := throttle.OpenPermits(url)
		require.NoError(t, err)
		lim, err := dispatch.Open(ctx, dispatch.Config{
			Policies: &policies, Permits: store, Cluster: cluster, OnClose: store.Close,
			Group: []string{"eu", "us"}[replica%2],
		})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, lim.Close()) })
		f.lims[replica] = lim
		for i, m := range modes {
			sub, err := lim.Subscription(m.topic(), "billing")
			require.NoError(t, err)
			f.subs[replica] = append(f.subs[replica], sub)
			f.callers.Go(func() { f.wait(ctx, sub, f.records[i], replica) })
			f.callers.Go(func() { f.try(ctx, sub, f.records[i], replica) })
		}
	}
	throttletest.Until(t, "each replica has answers for each limit", func() bool {
		return !slices.ContainsFunc(f.answers(), func(got [replicas]int64) bool { return slices.Contains(got[:], 0) })
	})
	for i, m := range modes {
		before := len(f.records[i].Events())
		throttletest.Until(t, string(m.sharing)+": the limit is in use", func() bool {
			return len(f.records[i].Events()) > before
		})
	}
	return f
}

// end ends the fleet, and may be called twice.
func (f *fleet) end() {
	f.stop()
	f.callers.Wait()
}

func (f *fleet) wait(
	ctx context.Context, sub *dispatch.Subscription, r *window.Record, replica int,
) {
	for {
		g, err := sub.Acquire(ctx, 1)
		if err != nil {
			return
		}
		r.Add(replica, g.N())
	}
}

// try is a caller that does not wait, every 10 ms.
func (f *fleet) try(
	ctx context.Context, sub *dispatch.Subscription, r *window.Record, replica int,
) {
	for ctx.Err() == nil {
		start := time.Now()
		g, _, ok := sub.TryAcquire(1)
		took := time.Since(start)
		if ok {
			r.Add(replica, g.N())
		}
		f.mu.Lock()
		f.slowest = max(f.slowest, took)
		f.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
}

// minGap is the shortest time between two strict permits since from.
func (f *fleet) minGap(from time.Duration) time.Duration {
	i := slices.IndexFunc(modes, func(m mode) bool { return m.sharing == policy.Strict })
	gap, events := time.Hour, f.records[i].Events()
	for i := 1; i < len(events); i++ {
		if events[i-1].At >= from {
			gap = min(gap, events[i].At-events[i-1].At)
		}
	}
	return gap
}
