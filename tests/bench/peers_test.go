package bench

import (
	"context"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	throttledlib "github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	limiter "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"
)

// plenty is a rate in permits a second, and a burst, that no loop can use up.
const plenty = 1_000_000_000

var ctx = context.Background()

func xTime() peer {
	return peer{
		name:  "x/time/rate",
		off:   func(testing.TB) func(int) { return xTimeWait(rate.NewLimiter(rate.Inf, 0), 1) },
		admit: func(testing.TB) func(int) { return xTimeWait(rate.NewLimiter(plenty, plenty), 1) },
		batch: func(testing.TB) func(int) { return xTimeWait(rate.NewLimiter(64*plenty, plenty), 64) },
		deny: func(testing.TB) func(int) { // Allow does not say when to retry
			l := rate.NewLimiter(rate.Every(time.Hour), 1)
			l.Allow()
			return func(n int) {
				for range n {
					check(!l.Allow())
				}
			}
		},
		giveBack: func(testing.TB) func(int) { // Cancel gives nothing back after the time of the permit
			l := rate.NewLimiter(plenty, plenty)
			return func(n int) {
				for range n {
					r := l.Reserve()
					check(r.OK())
					r.Cancel()
				}
			}
		},
	}
}

// xTimeReserve asks x/time/rate when to retry: it reserves a permit and cancels the reservation.
func xTimeReserve() peer {
	return peer{
		name: "x/time/rate-reserve",
		deny: func(testing.TB) func(int) {
			l := rate.NewLimiter(rate.Every(time.Hour), 1)
			l.Allow()
			return func(n int) {
				for range n {
					r := l.Reserve()
					check(r.Delay() > 0)
					r.Cancel()
				}
			}
		},
	}
}

func xTimeWait(l *rate.Limiter, permits int) func(int) {
	return func(n int) {
		for range n {
			check(l.WaitN(ctx, permits) == nil)
		}
	}
}

func failsafe() peer {
	return peer{
		name:  "failsafe-go",
		admit: func(testing.TB) func(int) { return failsafeAcquire(1) },
		batch: func(testing.TB) func(int) { return failsafeAcquire(64) },
		deny: func(testing.TB) func(int) { // TryAcquirePermit does not say when to retry
			l := ratelimiter.NewBursty[any](1, time.Hour)
			l.TryAcquirePermit()
			return func(n int) {
				for range n {
					check(!l.TryAcquirePermit())
				}
			}
		},
	}
}

func failsafeAcquire(permits uint) func(int) {
	l := ratelimiter.NewBursty[any](64*plenty, time.Second)
	return func(n int) {
		for range n {
			check(l.AcquirePermits(ctx, permits) == nil)
		}
	}
}

func uber() peer {
	return peer{
		name:  "uber",
		off:   func(testing.TB) func(int) { return uberTake(ratelimit.NewUnlimited()) },
		admit: func(testing.TB) func(int) { return uberTake(ratelimit.New(plenty)) },
	}
}

func uberTake(l ratelimit.Limiter) func(int) {
	return func(n int) {
		for range n {
			l.Take()
		}
	}
}

func throttled() peer {
	return peer{
		name: "throttled",
		admit: func(tb testing.TB) func(int) {
			return throttledTake(throttledMemory(tb, plentyQuota), 1, false)
		},
		batch: func(tb testing.TB) func(int) {
			return throttledTake(throttledMemory(tb, plentyQuota), 64, false)
		},
		deny: func(tb testing.TB) func(int) {
			l := throttledMemory(tb, throttledlib.RateQuota{MaxRate: throttledlib.PerHour(1)})
			throttledTake(l, 1, false)(1)
			return throttledTake(l, 1, true)
		},
	}
}

// plentyQuota has a permit every nanosecond, the highest rate that the library can count, and a
// burst worth 36 years.
var plentyQuota = throttledlib.RateQuota{MaxRate: throttledlib.PerSec(plenty), MaxBurst: 1 << 60}

func throttledMemory(tb testing.TB, quota throttledlib.RateQuota) *throttledlib.GCRARateLimiterCtx {
	tb.Helper()
	store, err := memstore.NewCtx(0)
	if err != nil {
		tb.Fatal(err)
	}
	return throttledLimiter(tb, store, quota)
}

func throttledLimiter(
	tb testing.TB, store throttledlib.GCRAStoreCtx, quota throttledlib.RateQuota,
) *throttledlib.GCRARateLimiterCtx {
	tb.Helper()
	l, err := throttledlib.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		tb.Fatal(err)
	}
	l.SetMaxCASAttemptsLimit(1 << 30) // the default fails under contention
	return l
}

func throttledTake(l *throttledlib.GCRARateLimiterCtx, permits int, wantLimited bool) func(int) {
	return func(n int) {
		for range n {
			limited, _, err := l.RateLimitCtx(ctx, "bench", permits)
			check(err == nil && limited == wantLimited)
		}
	}
}

func ulule() peer {
	return peer{
		name: "ulule",
		admit: func(testing.TB) func(int) {
			return ululeTake(limiter.New(memory.NewStore(), plentyHourly), false)
		},
		batch: func(testing.TB) func(int) {
			l := limiter.New(memory.NewStore(), plentyHourly)
			return func(n int) {
				for range n {
					c, err := l.Increment(ctx, "bench", 64)
					check(err == nil && !c.Reached)
				}
			}
		},
		deny: func(testing.TB) func(int) {
			l := limiter.New(memory.NewStore(), limiter.Rate{Period: time.Hour, Limit: 1})
			ululeTake(l, false)(1)
			return ululeTake(l, true)
		},
		giveBack: func(testing.TB) func(int) {
			l := limiter.New(memory.NewStore(), plentyHourly)
			take := ululeTake(l, false)
			return func(n int) {
				for range n {
					take(1)
					_, err := l.Increment(ctx, "bench", -1)
					check(err == nil)
				}
			}
		},
	}
}

var plentyHourly = limiter.Rate{Period: time.Hour, Limit: 1 << 60}

func ululeTake(l *limiter.Limiter, wantReached bool) func(int) {
	return func(n int) {
		for range n {
			c, err := l.Get(ctx, "bench")
			check(err == nil && c.Reached == wantReached)
		}
	}
}
