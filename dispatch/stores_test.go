package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

var quiet = slog.New(slog.DiscardHandler)

// lines returns the lines of a log that have a text.
func lines(log *throttletest.Log, text string) (found []string) {
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// TestHeldPoliciesAreLoggedOnce: while a policy store that is not followed changes again and again,
// the log has one line, and another one at the end. A store that cannot be read meanwhile is
// another condition.
func TestHeldPoliciesAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(id string, revision int64) policy.Snapshot {
			return policy.Snapshot{
				Set: policy.Single(perSecond(revision)), Identity: id, Epoch: 1, Revision: revision,
			}
		}
		source := iterSource(func(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
			return func(yield func(policy.Snapshot, error) bool) {
				yield(at("a", 7), nil)
				for n := range int64(10) {
					time.Sleep(time.Second)
					yield(at("b", 100+n), nil)
				}
				time.Sleep(time.Second)
				yield(policy.Snapshot{}, errors.New("no route to host"))
				time.Sleep(time.Second)
				yield(policy.Snapshot{}, errors.New("connection refused"))
				time.Sleep(time.Second)
				yield(at("a", 9), nil)
				<-ctx.Done()
			}
		})
		var log throttletest.Log
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source, Logger: log.Logger()})
		require.NoError(t, err)
		const held = 10*time.Second + time.Millisecond
		time.Sleep(held)
		assert.True(t, lim.Stats().PoliciesHeld)
		assert.Contains(t, lim.Stats().PolicyError, `"b"`)
		time.Sleep(time.Second)
		assert.False(t, lim.Stats().PoliciesHeld, "the store does not answer")
		assert.NotEmpty(t, lim.Stats().PolicyError)
		time.Sleep(2 * time.Second)
		assert.False(t, lim.Stats().PoliciesHeld)
		require.NoError(t, lim.Close())

		all := lines(&log, "")
		require.Len(t, all, 3, "%s", log.String())
		for i, want := range []string{
			`the policy store has policies \"b\"`, "no route to host", "the policy store is followed again",
		} {
			assert.Contains(t, all[i], "level=WARN")
			assert.Contains(t, all[i], want)
		}
	})
}

// TestDefaultLogger: without a logger, warnings go to slog.Default().
func TestDefaultLogger(t *testing.T) {
	var log throttletest.Log
	was := slog.Default()
	slog.SetDefault(log.Logger())
	defer slog.SetDefault(was)
	lim, err := dispatch.Open(t.Context(), dispatch.Config{CacheFile: filepath.Join(t.TempDir(), "missing", "cache.json")})
	require.NoError(t, err)
	throttletest.Until(t, "a warning", func() bool {
		return strings.Contains(log.String(), `level=WARN msg="the cache file could not be written"`)
	})
	require.NoError(t, lim.Close())
}

// linked opens a Limiter on a simulated permit store with a caller that takes all there is, until
// the test ends.
func linked(t *testing.T, p policy.Policy, log *slog.Logger) (*dispatch.Limiter, *permitstest.Store) {
	store := permitstest.NewStore(1, nil)
	lim, err := dispatch.Open(t.Context(), dispatch.Config{
		Policies: dispatch.Fixed(p), Permits: &permitstest.Link{Store: store}, Logger: log,
	})
	require.NoError(t, err)
	sub, err := lim.Subscription(topic, "group")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := sub.Acquire(context.Background(), 1<<20); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, lim.Close())
		<-ended
		store.Wait()
	})
	return lim, store
}

// TestSlowStoreIsReported: the log has the beginning and the end of a slow permit store, and Stats
// have its latency. A store that is as far away as another machine is not slow.
func TestSlowStoreIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log throttletest.Log
		lim, store := linked(t, perSecond(1000), log.Logger())
		far := func(rtt time.Duration) {
			store.Locked(func() { store.RTT = func() time.Duration { return rtt } })
			time.Sleep(20 * time.Second)
			assert.InDelta(t, rtt.Seconds(), lim.Stats().Permits.Latency, 0.01)
			assert.Equal(t, rtt > 100*time.Millisecond, lim.Stats().Permits.Slow)
		}
		slow := 3 // the first calls, which connect
		store.Locked(func() {
			store.RTT = func() time.Duration {
				if slow--; slow >= 0 {
					return 150 * time.Millisecond
				}
				return 40 * time.Millisecond
			}
		})
		time.Sleep(5 * time.Second)
		far(40 * time.Millisecond)
		assert.Empty(t, lines(&log, "slow"))
		far(150 * time.Millisecond)
		assert.Len(t, lines(&log, "the permit store is slow"), 1)
		far(40 * time.Millisecond)
		far(10 * time.Millisecond)
		assert.Len(t, lines(&log, "slow"), 2)
		assert.Len(t, lines(&log, "the permit store is no longer slow"), 1)
	})
}

// TestSlowStoreThatNobodyAsks is not known to be slow any more.
func TestSlowStoreThatNobodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := permitstest.NewStore(1, nil)
		store.RTT = func() time.Duration { return 150 * time.Millisecond }
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(perSecond(1000)), Permits: &permitstest.Link{Store: store},
		})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		asking.Go(func() {
			for ctx.Err() == nil {
				_, _ = sub.Acquire(ctx, 100)
			}
		})
		time.Sleep(20 * time.Second)
		assert.True(t, lim.Stats().Permits.Slow)
		cancel()
		asking.Wait()
		time.Sleep(55 * time.Second)
		assert.True(t, lim.Stats().Permits.Slow)
		time.Sleep(10 * time.Second)
		assert.False(t, lim.Stats().Permits.Slow)
		assert.Zero(t, lim.Stats().Permits.Latency)
		require.NoError(t, lim.Close())
		store.Wait()
	})
}

// TestDamageIsLoggedOnce: a state that is damaged again and again is counted each time, and logged
// once a minute.
func TestDamageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log throttletest.Log
		lim, store := linked(t, perSecond(1000), log.Logger())
		for range 11 {
			time.Sleep(10 * time.Second)
			store.Locked(func() {
				for _, limit := range store.Limits {
					limit.State.Rate = math.Inf(1)
				}
			})
		}
		time.Sleep(time.Second)
		assert.Equal(t, int64(11), lim.Stats().Permits.Damaged)
		assert.Len(t, lines(&log, "damaged"), 2)
	})
}

// A meddler is a log handler that asks the Limiter for its state.
type meddler struct {
	slog.Handler
	lim func() *dispatch.Limiter
	n   *atomic.Int64
}

func (m meddler) Handle(context.Context, slog.Record) error {
	if lim := m.lim(); lim != nil {
		lim.Stats()
		m.n.Add(1)
	}
	return nil
}

// TestLogHandlerMayCallTheLimiter: lines are written while the Limiter can be used.
func TestLogHandlerMayCallTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened atomic.Pointer[dispatch.Limiter]
		var n atomic.Int64
		lim, store := linked(t, perSecond(1000), slog.New(meddler{slog.NewTextHandler(io.Discard, nil), opened.Load, &n}))
		opened.Store(lim)
		time.Sleep(time.Second)
		store.Locked(func() {
			for _, limit := range store.Limits {
				limit.State.Rate = math.Inf(1)
			}
		})
		time.Sleep(time.Second)
		assert.Equal(t, int64(1), n.Load())
	})
}

// farStore is a permit store that is rtt away.
type farStore struct {
	*memory.Store
	rtt time.Duration
}

func (f farStore) Timeout() time.Duration { return 4 * f.rtt }

func (f farStore) Do(ctx context.Context, requests []*permits.Request) {
	time.Sleep(f.rtt / 2)
	f.Store.Do(ctx, requests)
	time.Sleep(f.rtt - f.rtt/2)
}

// TestStrictFarAway: a replica gets one slot of a strict limit in each round trip, as explain says.
func TestStrictFarAway(t *testing.T) {
	for _, c := range []struct {
		rtt      time.Duration
		replicas int
		wants    float64 // slots a second of a limit of 20/s
	}{{50 * time.Millisecond, 1, 20}, {200 * time.Millisecond, 1, 5}, {200 * time.Millisecond, 4, 20}} {
		synctest.Test(t, func(t *testing.T) {
			shared := memory.New()
			var got atomic.Int64
			var callers sync.WaitGroup
			defer callers.Wait() // once all are closed
			for range c.replicas {
				lim, err := dispatch.Open(t.Context(), dispatch.Config{
					Policies: dispatch.Fixed(strictly(t, "20/s")), Permits: farStore{shared, c.rtt},
				})
				require.NoError(t, err)
				defer func() { require.NoError(t, lim.Close()) }()
				sub, err := lim.Subscription(topic, "group")
				require.NoError(t, err)
				for range 20 {
					callers.Go(func() {
						for {
							if _, err := sub.Acquire(context.Background(), 1); err != nil {
								return
							}
							got.Add(1)
						}
					})
				}
			}
			time.Sleep(5 * time.Second)
			from := got.Load()
			time.Sleep(60 * time.Second)
			within(t, fmt.Sprintf("%v away, %d replicas", c.rtt, c.replicas), float64(got.Load()-from)/60,
				0.98*c.wants, 1.01*c.wants)
		})
	}
}
