package shapes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
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

// TestDataCentreCutOff: three data centres share a limit on an etcd of three members. When one is
// cut off, it stops and the others use the whole limit. When it is back, no allocation is lost.
func TestDataCentreCutOff(t *testing.T) {
	t.Parallel()
	const rate = 200
	cluster := services.EtcdCluster(t)
	p := policy.Policy{MessageRate: policy.PerSecond(rate), OnOutage: policy.OutageStop}
	topic := policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: "orders"}
	ctx, cancel := context.WithCancel(t.Context())
	var consumers sync.WaitGroup
	var mu sync.Mutex
	var all run
	var at [3]run // by data centre
	var stores [3]*counted
	for i, endpoint := range cluster.Endpoints {
		stores[i] = &counted{PermitStore: open(t, "etcd://"+endpoint+"/throttle")}
		lim, err := dispatch.Open(ctx, dispatch.Config{Policies: dispatch.Fixed(p), Permits: stores[i]})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic.String(), "group")
		require.NoError(t, err)
		consumers.Go(func() {
			defer func() { assert.NoError(t, lim.Close()) }()
			for {
				if _, err := sub.Acquire(ctx, 1); err != nil {
					assert.True(t, errors.Is(err, context.Canceled), err)
					return
				}
				mu.Lock()
				all.at = append(all.at, time.Now())
				at[i].at = append(at[i].at, time.Now())
				mu.Unlock()
			}
		})
	}
	between := func(r *run, from time.Time, d time.Duration) int {
		mu.Lock()
		defer mu.Unlock()
		return r.between(from, d)
	}
	lastSecond := func(i int) int { return between(&at[i], time.Now().Add(-time.Second), time.Second) }
	require.Eventually(t, func() bool {
		return lastSecond(0) > 0 && lastSecond(1) > 0 && lastSecond(2) > 0
	}, 30*time.Second, 50*time.Millisecond, "all have a share")

	cluster.Isolate(1)
	time.Sleep(2 * time.Second) // for the election, timeouts, and permits allocated before
	loosely.Hold(t, func(loose assert.TestingT) {
		from := time.Now()
		time.Sleep(3 * time.Second)
		alone := between(&at[1], from, 3*time.Second)
		others := between(&at[0], from, 3*time.Second) + between(&at[2], from, 3*time.Second)
		t.Logf("cut off: %d, the others: %d of %d", alone, others, 3*rate)
		assert.Zero(t, alone)
		assert.GreaterOrEqual(loose, others, 3*rate*85/100)
	})
	cluster.Heal()
	healed := time.Now()
	assert.Eventually(t, func() bool {
		return lastSecond(1) > rate/6
	}, 30*time.Second, 50*time.Millisecond, "it continues when it is back")
	t.Logf("back after %v; in the last second %d, %d and %d of %d", time.Since(healed),
		lastSecond(0), lastSecond(1), lastSecond(2), rate)

	cancel()
	consumers.Wait()
	allocated := int64(0)
	for _, l := range stores {
		allocated += l.n
	}
	state, _, err := stores[0].State(t.Context(), permits.LimitKey("standalone", policy.TopicScope(topic), false))
	require.NoError(t, err)
	t.Logf("at most %d in any second; %d allocations answered, %d in the permit store", all.window(), allocated,
		state.Seq)
	assert.LessOrEqual(t, all.window(), rate*125/100, "rate x (1 s + 0.25 s)")
	assert.GreaterOrEqual(t, state.Seq, allocated, "every answered allocation is in the permit store")
}
