package dispatch_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestColdStart: a thousand replicas start while the permit store is unavailable. Each has the
// limit divided by the number of replicas in its cache file, or a thousandth of it if it has none:
// if that number is half of theirs, all together have twice the limit.
func TestColdStart(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet takes long with the race detector")
	}
	t.Parallel()
	const replicas, rate, seconds = 1000, 12_000, 5
	for counted, part := range map[int]float64{0: 1, 500: 2, 1000: 1, 2000: 0.5} {
		t.Run(fmt.Sprintf("%d counted before", counted), func(t *testing.T) {
			cache := ""
			if counted > 0 {
				text, err := policy.MarshalSnapshot(policy.Snapshot{
					Set: policy.Single(perSecond(rate)), Identity: "a", Epoch: 5, Revision: 1,
				})
				require.NoError(t, err)
				cache = filepath.Join(t.TempDir(), "policies.json")
				withCount := strings.TrimSuffix(string(text), "}") + fmt.Sprintf(`,"replicas":%d}`, counted)
				require.NoError(t, os.WriteFile(cache, []byte(withCount), 0o600))
			}
			synctest.Test(t, func(t *testing.T) {
				store := permitstest.NewStore(1, nil)
				store.Locked(func() { store.Down = true })
				var got atomic.Int64
				var callers sync.WaitGroup
				var limiters []*dispatch.Limiter
				for i := range replicas {
					lim, err := dispatch.Open(t.Context(), dispatch.Config{
						Policies: storeOf("a", 5, perSecond(rate)), Permits: &permitstest.Link{Store: store},
						CacheFile: cache, Replica: fmt.Sprint(i), Logger: quiet,
					})
					require.NoError(t, err)
					limiters = append(limiters, lim)
					sub, err := lim.Subscription(topic, "group")
					require.NoError(t, err)
					callers.Go(func() {
						for {
							g, err := sub.Acquire(context.Background(), 1)
							if err != nil {
								return
							}
							got.Add(int64(g.N()))
						}
					})
				}
				time.Sleep(2 * time.Second)
				from := got.Load()
				time.Sleep(seconds * time.Second)
				within(t, "permits, of the limit", float64(got.Load()-from)/(rate*seconds), 0.9*part, 1.05*part)
				for _, lim := range limiters {
					require.NoError(t, lim.Close())
				}
				callers.Wait()
			})
		})
	}
}
