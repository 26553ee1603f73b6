package bench

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
)

func throttle() peer {
	return peer{
		name:  "throttle",
		off:   func(tb testing.TB) func(int) { return take(subscribe(tb, dispatch.Config{}), 1) },
		admit: func(tb testing.TB) func(int) { return take(subscribe(tb, boundless()), 1) },
		batch: func(tb testing.TB) func(int) { return take(subscribe(tb, boundless()), 64) },
		deny: func(tb testing.TB) func(int) {
			hourly := policy.Policy{MessageRate: policy.Rate{Permits: 1, Period: time.Hour}}
			sub := subscribe(tb, dispatch.Config{Policies: dispatch.Fixed(hourly)})
			take(sub, 1)(1)
			return func(n int) {
				for range n {
					_, next, ok := sub.TryAcquire(1)
					check(!ok && !next.IsZero())
				}
			}
		},
		giveBack: func(tb testing.TB) func(int) {
			sub := subscribe(tb, boundless())
			return func(n int) {
				for range n {
					g, err := sub.Acquire(ctx, 1)
					check(err == nil)
					g.Done(0, 0)
				}
			}
		},
	}
}

func take(sub *dispatch.Subscription, permits int) func(int) {
	return func(n int) {
		for range n {
			g, err := sub.Acquire(ctx, permits)
			check(err == nil)
			g.Done(permits, 0)
		}
	}
}

func subscribe(tb testing.TB, cfg dispatch.Config) *dispatch.Subscription {
	tb.Helper()
	lim, err := dispatch.Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if n := lim.Stats().Permits.Errors; n > 0 {
			tb.Errorf("%d requests for permits failed: an outage was measured", n)
		}
		if err := lim.Close(); err != nil {
			tb.Error(err)
		}
	})
	sub, err := lim.Subscription("kafka://public/default/bench", "group")
	if err != nil {
		tb.Fatal(err)
	}
	return sub
}

// boundless has a limit that no loop can use up. Its rate is higher than a valid policy's, and the
// permit store allocates more permits than are requested. The path of a caller is the usual one.
func boundless() dispatch.Config {
	return dispatch.Config{Policies: beyond{}, Permits: generous{memory.New()}}
}

const endless = 1_000_000_000_000_000

type beyond struct{}

func (beyond) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	round := policy.Duration(10 * time.Second)
	p := policy.Policy{MessageRate: policy.PerSecond(endless), Round: round}
	return func(yield func(policy.Snapshot, error) bool) {
		if yield(policy.Snapshot{Set: policy.Single(p), Identity: "bench", Revision: 1}, nil) {
			<-ctx.Done()
		}
	}
}

type generous struct{ *memory.Store }

func (l generous) Do(ctx context.Context, requests []*permits.Request) {
	l.Store.Do(ctx, requests)
	for _, r := range requests {
		if r.Allocate.Reply.N > 0 {
			r.Allocate.Want, r.Allocate.Reply.N = endless, endless // a replica takes no more than it wants
		}
	}
}
