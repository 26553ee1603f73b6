package shapes

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
	"github.com/dispatchthrottle/throttle/tests/window"
)

// counted is a permit store that counts answered allocations.
type counted struct {
	dispatch.PermitStore
	mu sync.Mutex
	n  int64
}

func (l *counted) Do(ctx context.Context, requests []*permits.Request) {
	l.PermitStore.Do(ctx, requests)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range requests {
		if r.Err == nil && r.Allocate.Reply.N > 0 {
			l.n++
		}
	}
}

// Three data centres share a limit on an etcd of three members.
type dataCentres struct {
	t       *testing.T
	cluster *services.EtcdTrio
	stores  [3]*counted
	started time.Time

	mu sync.Mutex
	at [3][]time.Time // of messages
}

const centresRate = 200

// drainCentres drains in each data centre until end is called.
func drainCentres(t *testing.T) (d *dataCentres, end func()) {
	d = &dataCentres{t: t, cluster: services.EtcdCluster(t), started: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	var consumers sync.WaitGroup
	for i, endpoint := range d.cluster.Endpoints {
		d.stores[i] = &counted{PermitStore: openTimed(t, "etcd://"+endpoint+"/throttle")}
		lim, err := dispatch.Open(ctx, dispatch.Config{Policies: dispatch.Fixed(stop(centresRate)), Permits: d.stores[i]})
		require.NoError(t, err)
		sub, err := lim.Subscription(centresTopic.String(), "group")
		require.NoError(t, err)
		consumers.Go(func() {
			defer func() { assert.NoError(t, lim.Close()) }()
			for {
				if _, err := sub.Acquire(ctx, 1); err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
				d.mu.Lock()
				d.at[i] = append(d.at[i], time.Now())
				d.mu.Unlock()
			}
		})
	}
	return d, func() { cancel(); consumers.Wait() }
}

var centresTopic = policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: "orders"}

// lately counts the messages of a data centre in the last d.
func (c *dataCentres) lately(i int, d time.Duration) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := time.Now().Add(-d)
	for k := len(c.at[i]) - 1; k >= 0 && c.at[i][k].After(from); k-- {
		n++
	}
	return n
}

// all returns the messages of all data centres.
func (c *dataCentres) all() (all []window.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, centre := range c.at {
		for _, at := range centre {
			all = append(all, window.Event{At: at.Sub(c.started), N: 1})
		}
	}
	slices.SortFunc(all, func(a, b window.Event) int { return cmp.Compare(a.At, b.At) })
	return all
}

// await waits until a condition on the messages of the last second holds for each data centre.
func (c *dataCentres) await(what string, holds func(i, n int) bool) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		return holds(0, c.lately(0, time.Second)) && holds(1, c.lately(1, time.Second)) && holds(2, c.lately(2, time.Second))
	}, throttletest.Patience, 10*time.Millisecond, what)
}

// TestDataCentreCutOff: three data centres share a limit on an etcd of three members. When one is
// cut off, it stops and the others go on. When it is back, so does it, and no allocation is lost.
func TestDataCentreCutOff(t *testing.T) {
	t.Parallel()
	c, end := drainCentres(t)
	defer end()
	c.await("all have a share", func(_, n int) bool { return n > 0 })
	c.cluster.Isolate(1)
	c.await("the one that is cut off stops", func(i, n int) bool { return (n > 0) == (i != 1) })
	c.cluster.Heal()
	c.await("it continues when it is back", func(_, n int) bool { return n > 0 })
	end()
	allocated := int64(0)
	for _, l := range c.stores {
		allocated += l.n
	}
	key := permits.LimitKey("standalone", policy.TopicScope(centresTopic), false)
	var state schedule.State
	require.NoError(t, patiently(func() (err error) {
		state, _, err = c.stores[0].State(t.Context(), key)
		return err
	}))
	assert.GreaterOrEqual(t, state.Seq, allocated, "every answered allocation is in the permit store")
	assert.NoError(t, window.WithinRate(centresRate, slack, 0, c.all()))
}
