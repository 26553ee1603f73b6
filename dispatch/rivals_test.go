package dispatch_test

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// storeOf is a policy store with that id, whose policy does not change.
func storeOf(id string, epoch int64, p policy.Policy) dispatch.PolicySource {
	return iterSource(func(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
		return func(yield func(policy.Snapshot, error) bool) {
			if yield(policy.Snapshot{Set: policy.Single(p), Identity: id, Epoch: epoch, Revision: 1}, nil) {
				<-ctx.Done()
			}
		}
	})
}

// TestTwoPolicyStores: while replicas of two policy stores use one limit, the lower rate is in
// force for all together, in each sharing mode, whichever came first and whichever is newer. Both
// sides know of the other. A minute after the ones with the lower rate have ended, the higher rate
// is in force.
func TestTwoPolicyStores(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet takes long with the race detector")
	}
	t.Parallel()
	for mode, set := range map[string]func(*policy.Policy){
		"fair":   func(*policy.Policy) {},
		"strict": func(p *policy.Policy) { p.Sharing.Mode = policy.Strict },
		"split":  func(p *policy.Policy) { p.Sharing.Mode = policy.Split },
		"groups": func(p *policy.Policy) { p.Sharing.Mode, p.Sharing.Groups = policy.Groups, []string{"g", "h"} },
	} {
		for _, lowFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, low first %v", mode, lowFirst), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { twoPolicyStores(t, set, lowFirst) })
			})
		}
	}
}

func twoPolicyStores(t *testing.T, set func(*policy.Policy), lowFirst bool) {
	const low, high = 100, 400
	store, dispatched, start := permitstest.NewStore(1, nil), window.NewRecord(), time.Now()
	var running sync.WaitGroup
	var log throttletest.Log
	open := func(id string, epoch, rate int64, group string) *dispatch.Limiter {
		p := perSecond(rate)
		set(&p)
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: storeOf(id, epoch, p), Permits: &permitstest.Link{Store: store}, Group: group, Logger: log.Logger(),
		})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		for range 4 {
			running.Go(func() {
				for {
					g, err := sub.Acquire(context.Background(), 1)
					if err != nil {
						return
					}
					dispatched.Add(0, g.N())
				}
			})
		}
		return lim
	}
	ofLow := func() []*dispatch.Limiter {
		return []*dispatch.Limiter{open("low", 5, low, "g"), open("low", 5, low, "h")}
	}
	ofHigh := func() []*dispatch.Limiter {
		return []*dispatch.Limiter{open("high", 9, high, "g"), open("high", 9, high, "h")}
	}
	var lows, highs []*dispatch.Limiter
	if lowFirst {
		lows = ofLow()
		time.Sleep(5 * time.Second)
		highs = ofHigh()
	} else {
		highs = ofHigh()
		time.Sleep(5 * time.Second)
		lows = ofLow()
	}
	time.Sleep(5 * time.Second) // they hear of each other
	from := time.Since(start)
	time.Sleep(20 * time.Second)
	to := time.Since(start)
	within(t, "both, in 20 s", dispatched.Between(from, to), 20*low*94/100, 20*low*103/100)
	for _, lim := range lows {
		assert.Equal(t, []string{"high"}, lim.Stats().Rivals)
	}
	for _, lim := range highs {
		assert.Equal(t, []string{"low"}, lim.Stats().Rivals)
		limit := lim.Stats().Subscriptions[0].Limits[0]
		assert.Equal(t, "low", limit.Rival)
		assert.InDelta(t, low, limit.Rate, 1e-9, "the one in force")
	}
	for _, lim := range lows {
		require.NoError(t, lim.Close())
	}
	ended := time.Since(start)
	time.Sleep(59 * time.Second)
	within(t, "the higher ones alone, in the first 50 s", dispatched.Between(ended+5*time.Second, ended+55*time.Second),
		50*low*94/100, 50*low*103/100)
	time.Sleep(10 * time.Second)
	within(t, "after a minute, in 5 s", dispatched.Between(ended+63*time.Second, ended+68*time.Second),
		5*high*94/100, 5*high*105/100)
	for _, lim := range highs {
		assert.Empty(t, lim.Stats().Rivals)
		require.NoError(t, lim.Close())
	}
	running.Wait()
	store.Wait()
	assert.Len(t, lines(&log, "the lower rates are in force"), 4, "one for each process")
	assert.Len(t, lines(&log, "use the same limits no more"), 2, "those that are left")
}
