package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

const (
	limitRate   = 20              // permits a second of each limit
	limitSettle = 2 * time.Second // callers run before the window
	limitWindow = 4 * time.Second // is measured
)

// BenchmarkManyLimits measures many busy limits in one process: 20/s each, each with one caller
// that always waits for its next permit. Our limits are in a permit store in memory; x/time/rate
// has a Limiter with a burst of 1 for each caller. They take turns: ours is first and last.
func BenchmarkManyLimits(b *testing.B) {
	for _, limits := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d/throttle", limits), func(b *testing.B) {
			for b.Loop() {
				ours, peer := loadOf(b, limits, ourLimits), loadOf(b, limits, xTimeLimits)
				peer = peer.plus(loadOf(b, limits, xTimeLimits))
				ours = ours.plus(loadOf(b, limits, ourLimits))
				b.ReportMetric(0, "ns/op") // not shown
				b.ReportMetric(ours.perPermit(), "us-cpu/permit")
				b.ReportMetric(peer.perPermit(), "us-cpu/permit-of-x/time/rate")
				b.ReportMetric(ours.perPermit()/peer.perPermit(), "x-cpu-of-x/time/rate")
				b.ReportMetric(100*ours.slowest, "%-of-the-slowest-limit")
				b.ReportMetric(100*peer.slowest, "%-of-the-slowest-limit-of-x/time/rate")
			}
		})
	}
}

// A load is what many limits did and cost in a window.
type load struct {
	cpu     time.Duration // user and system, of the process
	permits int
	slowest float64 // the rate of the slowest limit, as a part of what it allows
}

func (l load) plus(m load) load {
	return load{l.cpu + m.cpu, l.permits + m.permits, min(l.slowest, m.slowest)}
}

func (l load) perPermit() float64 { return float64(l.cpu.Microseconds()) / float64(l.permits) }

// A waitFunc waits for a permit of one limit.
type waitFunc func(ctx context.Context) error

// An openFunc opens limits. end closes them.
type openFunc func(b *testing.B, limits int) (wait []waitFunc, end func())

// loadOf opens limits, has one caller wait for the permits of each, and measures a window.
func loadOf(b *testing.B, limits int, open openFunc) load {
	b.Helper()
	wait, end := open(b, limits)
	defer end()
	runtime.GC()
	ctx, cancel := context.WithCancel(b.Context())
	from := time.Now().Add(limitSettle)
	to := from.Add(limitWindow)
	callers := make([]permitTimes, limits)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for wait[i](ctx) == nil {
				callers[i].add(time.Now(), from, to)
			}
		})
	}
	time.Sleep(time.Until(from))
	cpu := cpuTime()
	time.Sleep(time.Until(to))
	l := load{cpu: cpuTime() - cpu, slowest: math.Inf(1)}
	cancel()
	all.Wait()
	for i := range callers {
		l.permits += callers[i].n
		l.slowest = min(l.slowest, callers[i].rate(to)/limitRate)
	}
	return l
}

// PermitTimes are when one caller got its permits in a window.
type permitTimes struct {
	n           int
	first, last time.Time
	_           [64]byte // no two callers write to one cache line
}

func (p *permitTimes) add(now, from, to time.Time) {
	if now.Before(from) || now.After(to) {
		return
	}
	if p.n++; p.n == 1 {
		p.first = now
	}
	p.last = now
}

// rate is the permits a second from the first one to the last one. A caller that gets none for more
// than a period before the end of the window has a lower rate: it counts up to then.
func (p *permitTimes) rate(to time.Time) float64 {
	if p.n < 2 {
		return 0
	}
	last := p.last
	if due := to.Add(-time.Second / limitRate); due.After(last) {
		last = due
	}
	return float64(p.n-1) / last.Sub(p.first).Seconds()
}

// TestPermitTimes: permits that stop before the end of the window lower the rate, and those outside
// of it do not count.
func TestPermitTimes(t *testing.T) {
	const period = time.Second / limitRate
	from := time.Now()
	to := from.Add(40 * period)
	steady, stopped := permitTimes{}, permitTimes{}
	for i := range 60 {
		now := from.Add(time.Duration(i-10)*period + period/2)
		steady.add(now, from, to)
		if i < 30 {
			stopped.add(now, from, to)
		}
	}
	if got := steady.rate(to); steady.n != 40 || math.Abs(got-limitRate) > 1e-6 {
		t.Errorf("%d permits at %v/s, want 40 at %v/s", steady.n, got, limitRate)
	}
	if got := stopped.rate(to); got > 0.51*limitRate {
		t.Errorf("rate = %v/s of a caller that stopped after half of the window", got)
	}
}

func ourLimits(b *testing.B, limits int) (wait []waitFunc, end func()) {
	b.Helper()
	p := policy.Policy{MessageRate: policy.PerSecond(limitRate)}
	lim, err := dispatch.Open(b.Context(), dispatch.Config{Policies: dispatch.Fixed(p)})
	check(err == nil)
	for i := range limits {
		sub, err := lim.Subscription(fmt.Sprint("kafka://public/default/topic-", i), "group")
		check(err == nil)
		wait = append(wait, func(ctx context.Context) error {
			g, err := sub.Acquire(ctx, 1)
			g.Done(1, 0)
			return err
		})
	}
	return wait, func() { check(lim.Close() == nil) }
}

func xTimeLimits(_ *testing.B, limits int) (wait []waitFunc, end func()) {
	for range limits {
		l := rate.NewLimiter(limitRate, 1)
		wait = append(wait, func(ctx context.Context) error { return l.WaitN(ctx, 1) })
	}
	return wait, func() {}
}

// cpuTime is what the process has used so far, user and system.
func cpuTime() time.Duration {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
