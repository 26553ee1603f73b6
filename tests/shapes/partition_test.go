package shapes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
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

// count returns the number of messages of a data centre.
func (c *dataCentres) count(i int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.at[i])
}

// more waits until each of some data centres has got n messages more.
func (c *dataCentres) more(n int, centres ...int) {
	c.t.Helper()
	for _, i := range centres {
		before := c.count(i)
		throttletest.Until(c.t, fmt.Sprintf("data centre %d gets %d messages", i, n), func() bool {
			return c.count(i) >= before+n
		})
	}
}

// TestDataCentreCutOff: three data centres share a limit on an etcd of three members. When one is
// cut off, it stops and the others go on. When it is back, so does it, and no allocation is lost.
func TestDataCentreCutOff(t *testing.T) {
	t.Parallel()
	c, end := drainCentres(t)
	defer end()
	c.more(10, 0, 1, 2)
	c.cluster.Isolate(1)
	throttletest.Until(t, "the one that is cut off gets nothing while the others go on", func() bool {
		before := c.count(1)
		c.more(50, 0, 2)
		return c.count(1) == before
	})
	c.cluster.Heal()
	c.more(10, 0, 1, 2)
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
