package dispatch_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A service has a capacity in requests a second, and answers busy above that. It saves up a tenth
// of a second's capacity.
type service struct {
	mu       sync.Mutex
	capacity float64
	saved    float64
	at       time.Time
	ok, busy int
	refuses  dispatch.Outcome // what it answers above its capacity; default busy
}

func (s *service) can(capacity float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.capacity = capacity
}

// call is one request.
func (s *service) call() dispatch.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.saved = min(max(1, s.capacity/10), s.saved+s.capacity*now.Sub(s.at).Seconds())
	s.at = now
	if s.saved < 1 {
		s.busy++
		return cmp.Or(s.refuses, dispatch.OutcomeBusy)
	}
	s.saved--
	s.ok++
	return dispatch.OutcomeOK
}

// count returns the numbers of answers in an interval.
func (s *service) count(d time.Duration) (ok, busy float64) {
	s.mu.Lock()
	s.ok, s.busy = 0, 0
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.ok) / d.Seconds(), float64(s.busy) / d.Seconds()
}

// calls has a replica call the service for each of rate messages a second.
func (r *replica) calls(s *service, rate float64) {
	rng := rand.New(rand.NewPCG(uint64(r.id), 3))
	r.wg.Go(func() {
		next := time.Now()
		for r.ctx.Err() == nil {
			next = next.Add(time.Duration(rng.ExpFloat64() / rate * float64(time.Second)))
			time.Sleep(time.Until(next))
			if _, err := r.sub.Acquire(r.ctx, 1); err != nil {
				return
			}
			if late := time.Since(next); late > time.Second { // the backlog is bounded to a second
				next = next.Add(late - time.Second)
			}
			r.sub.ReportOutcome(s.call(), 0)
		}
	})
}

// TestBusy: replicas that flood a service slow down together to its capacity, and return to full
// speed when the capacity rises.
func TestBusy(t *testing.T) {
	t.Parallel()
	for _, limited := range []bool{false, true} {
		t.Run(fmt.Sprint("limited ", limited), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := policy.Policy{CaughtUp: policy.CaughtUp{Throttle: new(true)}}
				if limited {
					p.MessageRate = policy.PerSecond(5000)
				}
				f := newFleet(t, 1, p)
				s := &service{capacity: 400, at: time.Now()}
				for i := range 4 {
					f.join(i, "group").calls(s, 250)
				}
				time.Sleep(10 * time.Second)
				ok, busy := s.count(20 * time.Second)
				within(t, "of the capacity", ok, 360, 402) // it saves up 40
				within(t, "busy answers", busy/(ok+busy), 0, 0.05)
				s.can(2000)
				time.Sleep(10 * time.Second)
				ok, busy = s.count(10 * time.Second)
				within(t, "at full speed", ok, 950, 1050)
				assert.Zero(t, busy)
				f.end()
			})
		})
	}
}

// TestBusyIsHeardByAll: the busy answers of one replica slow down the others, which have got none
// themselves.
func TestBusyIsHeardByAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, policy.Policy{})
		good, bad := &service{capacity: 1e6, at: time.Now()}, &service{capacity: 1, at: time.Now()}
		f.join(0, "group").calls(bad, 500)
		f.join(1, "group").calls(good, 500)
		time.Sleep(5 * time.Second)
		ok, _ := good.count(5 * time.Second)
		assert.Less(t, ok, 420.)
		assert.Equal(t, dispatch.ReasonBusy, f.joined[1].sub.Stats().Limits[0].Reason)
		f.end()
	})
}

// TestBusyOfOthers: another subscription of the topic does not slow down, nor does one with
// busy.mode none.
func TestBusyOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, policy.Policy{})
		down, up := &service{capacity: 0, at: time.Now()}, &service{capacity: 1e6, at: time.Now()}
		f.join(0, "group").calls(down, 500)
		f.join(1, "other").calls(up, 500)
		time.Sleep(5 * time.Second)
		ok, _ := up.count(5 * time.Second)
		within(t, "of the other", ok, 470, 530)
		_, busy := down.count(10 * time.Second)
		within(t, "probes", busy, 0.5, 1.5)
		f.policies.Set(policy.Single(policy.Policy{Busy: policy.Busy{Mode: policy.BusyNone}}))
		time.Sleep(time.Second)
		_, busy = down.count(5 * time.Second)
		within(t, "none", busy, 450, 550)
		f.end()
	})
}

// countBusy returns a policy by which these outcomes count as busy: names with commas, or "" for
// the default.
func countBusy(outcomes string) (p policy.Policy) {
	if outcomes != "" {
		p.Busy.Outcomes = strings.Split(outcomes, ",")
	}
	return p
}

// TestBusyOutcomes: the policy says which outcomes count as busy, and may change.
func TestBusyOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts  string
		outcome dispatch.Outcome
		slow    bool
	}{
		{"", dispatch.OutcomeBusy, true},
		{"", dispatch.OutcomeFailed, false},
		{"", dispatch.OutcomeTimeout, false},
		{"failed", dispatch.OutcomeFailed, true},
		{"failed", dispatch.OutcomeBusy, false},
		{"busy,timeout", dispatch.OutcomeTimeout, true},
		{"busy,timeout", dispatch.OutcomeFailed, false},
		{"busy,failed,timeout", dispatch.OutcomeIgnored, false},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, countBusy(c.counts))
				s := &service{capacity: 100, at: time.Now(), refuses: c.outcome}
				f.join(0, "group").calls(s, 500)
				time.Sleep(10 * time.Second)
				ok, refused := s.count(10 * time.Second)
				if c.slow {
					within(t, "slowed down", ok+refused, 80, 125)
				} else {
					within(t, "at full speed", ok+refused, 470, 530)
				}
				f.policies.Set(policy.Single(countBusy("busy,failed,timeout")))
				time.Sleep(10 * time.Second)
				ok, refused = s.count(10 * time.Second)
				if c.outcome == dispatch.OutcomeIgnored {
					within(t, "at full speed", ok+refused, 470, 530)
				} else {
					within(t, "slowed down by all of them", ok+refused, 80, 125)
				}
				f.end()
			})
		})
	}
}

// TestBusyOfOld: outcomes that were reported while the policy ignored them have no later effect.
func TestBusyOfOld(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]policy.Policy{
		"none":        {Busy: policy.Busy{Mode: policy.BusyNone}},
		"of failures": countBusy("failed"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, p)
				r := f.join(0, "group")
				for range 10_000 {
					r.sub.ReportOutcome(dispatch.OutcomeBusy, time.Minute)
				}
				f.policies.Set(policy.Single(policy.Policy{}))
				s := &service{capacity: 1e6, at: time.Now()}
				r.calls(s, 500)
				time.Sleep(2 * time.Second)
				ok, _ := s.count(5 * time.Second)
				within(t, "messages", ok, 470, 530)
				f.end()
			})
		})
	}
}

// TestReporting: the outcome of each call is reported, also of a panic, and the results of f are
// returned.
func TestReporting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, countBusy("busy,failed"))
		r := f.join(0, "group")
		s := &service{capacity: 100, at: time.Now()}
		failure := errors.New("away")
		answer := map[dispatch.Outcome]error{
			dispatch.OutcomeBusy: &dispatch.BusyError{}, dispatch.OutcomeFailed: failure,
			dispatch.OutcomeTimeout: context.DeadlineExceeded,
		}
		call := dispatch.Throttled(r.sub, dispatch.Reporting(r.sub, func(_ context.Context, n int) (int, error) {
			o := s.call()
			if o == dispatch.OutcomeIgnored {
				panic("lost")
			}
			return n + 1, answer[o]
		}))
		r.wg.Go(func() { // a call every 2 ms
			for next := time.Now(); r.ctx.Err() == nil; time.Sleep(time.Until(next)) {
				func() {
					defer func() { _ = recover() }()
					_, _ = call(r.ctx, 1)
				}()
				if next = next.Add(2 * time.Millisecond); time.Since(next) > time.Second {
					next = time.Now()
				}
			}
		})
		for _, refuses := range []dispatch.Outcome{
			dispatch.OutcomeBusy, dispatch.OutcomeFailed, dispatch.OutcomeTimeout,
			dispatch.OutcomeIgnored, // a panic
		} {
			s.mu.Lock()
			s.refuses = refuses
			s.mu.Unlock()
			time.Sleep(15 * time.Second)
			ok, busy := s.count(10 * time.Second)
			if refuses == dispatch.OutcomeTimeout {
				within(t, "of time-outs, which do not count", ok+busy, 470, 530)
				break
			}
			within(t, fmt.Sprint("of outcome ", refuses), ok+busy, 80, 125)
		}
		s.can(1e6)
		n, err := call(r.ctx, 1)
		assert.Equal(t, 2, n)
		require.NoError(t, err)
		n, err = dispatch.Reporting(r.sub, func(_ context.Context, n int) (int, error) { return -n, failure })(r.ctx, 1)
		assert.Equal(t, -1, n)
		assert.Equal(t, failure, err)
		assert.PanicsWithValue(t, "lost", func() {
			_, _ = dispatch.Reporting(r.sub, func(context.Context, int) (int, error) { panic("lost") })(r.ctx, 1)
		})
		f.end()
	})
}

// A handler waits for its permits, and reports the answers of a service.
func ExampleReporting() {
	ctx := context.Background()
	lim, _ := dispatch.Open(ctx, dispatch.Config{Permits: memory.New()}) // or throttle.FromEnv(ctx)
	sub, _ := lim.Subscription("kafka://public/default/orders", "billing")
	post := func(_ context.Context, order string) (string, error) {
		if order == "one too many" {
			return "", &dispatch.BusyError{RetryAfter: time.Second, Err: errors.New("429 Too Many Requests")}
		}
		return order + ": posted", nil
	}
	handle := dispatch.Throttled(sub, dispatch.Reporting(sub, post))
	for _, order := range []string{"an allocate", "one too many"} {
		answer, err := handle(ctx, order)
		fmt.Printf("%q %v\n", answer, err)
	}
	fmt.Println("there is a limit now:", sub.Limited())
	_ = lim.Close()
	// Output:
	// "an allocate: posted" <nil>
	// "" busy, retry after 1s: 429 Too Many Requests
	// there is a limit now: true
}

// TestNoReports: a subscription without reports, or with neither good nor busy ones, costs nothing.
func TestNoReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, policy.Policy{})
		r := f.join(0, "group")
		for _, o := range []dispatch.Outcome{dispatch.OutcomeFailed, dispatch.OutcomeTimeout, dispatch.OutcomeIgnored} {
			r.sub.ReportOutcome(o, time.Second)
		}
		assert.False(t, r.sub.Limited())
		assert.Empty(t, r.sub.Stats().Limits)
		var none *dispatch.Subscription
		none.ReportOutcome(dispatch.OutcomeBusy, 0)
		f.end()
	})
}

// TestReportsOfTheClosed: a report after Close has no effect.
func TestReportsOfTheClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, policy.Policy{})
		r := f.join(0, "group")
		require.NoError(t, r.sub.Close())
		r.sub.ReportOutcome(dispatch.OutcomeBusy, 0)
		again, err := r.lim.Subscription(topic, "group")
		require.NoError(t, err)
		assert.False(t, again.Limited())
		f.end()
		r.sub.ReportOutcome(dispatch.OutcomeBusy, 0)
	})
}

// TestBusyWithoutPermitStore: while the permit store is unavailable, busy answers stop nothing.
func TestBusyWithoutPermitStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, policy.Policy{OnOutage: policy.OutageStop})
		s := &service{capacity: 1e6, at: time.Now()}
		r := f.join(0, "group")
		r.store.Locked(func() { r.link.Cut = true })
		r.calls(s, 100)
		time.Sleep(5 * time.Second)
		ok, _ := s.count(5 * time.Second)
		within(t, "messages", ok, 90, 110)
		f.end()
	})
}

// TestOutcomeOf: the outcome of an error.
func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	busy := &dispatch.BusyError{RetryAfter: 3 * time.Second, Err: errors.New("429 Too Many Requests")}
	o, retryAfter := dispatch.OutcomeOf(fmt.Errorf("post: %w", busy))
	assert.Equal(t, dispatch.OutcomeBusy, o)
	assert.Equal(t, 3*time.Second, retryAfter)
	require.EqualError(t, busy, "busy, retry after 3s: 429 Too Many Requests")
	for err, want := range map[error]dispatch.Outcome{
		nil: dispatch.OutcomeOK, context.Canceled: dispatch.OutcomeIgnored,
		context.DeadlineExceeded: dispatch.OutcomeTimeout, errors.New("x"): dispatch.OutcomeFailed,
		&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}: dispatch.OutcomeTimeout,
		&net.OpError{Op: "dial", Err: io.EOF}:                 dispatch.OutcomeFailed,
	} {
		o, _ := dispatch.OutcomeOf(err)
		assert.Equal(t, want, o)
	}
}

// BenchmarkReportOutcome is the report of one good answer.
func BenchmarkReportOutcome(b *testing.B) {
	lim, err := dispatch.Open(b.Context(), dispatch.Config{})
	require.NoError(b, err)
	defer func() { require.NoError(b, lim.Close()) }()
	sub, err := lim.Subscription(topic, "group")
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		sub.ReportOutcome(dispatch.OutcomeOK, 0)
	}
}

// TestReservedWhileThereAreHandles: a subscription slows down no further than a quota reserves for
// messages of a tag, as long as there are handles for that tag.
func TestReservedWhileThereAreHandles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := new(permitstest.Policies)
		source.Set(set(t, map[string]policy.Quota{
			"tag:gold": {Reserved: new(int64(50 * quota.AssumedCost)), Total: new(int64(1 << 40))},
		}))
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		gold, err := lim.Subscription(topic, "group", dispatch.WithTag("gold"))
		require.NoError(t, err)
		rate := func() float64 {
			n, from := 0, time.Now()
			for ; time.Since(from) < 20*time.Second; n++ {
				_, err := sub.Acquire(t.Context(), 1)
				require.NoError(t, err)
				sub.ReportOutcome(dispatch.OutcomeBusy, 0)
				time.Sleep(time.Millisecond)
			}
			return float64(n) / time.Since(from).Seconds()
		}
		rate() // slows down
		within(t, "with what is reserved", rate(), 48, 52)
		require.NoError(t, gold.Close())
		rate()
		within(t, "without", rate(), 0.9, 1.2)
		require.NoError(t, lim.Close())
	})
}

// TestBusyForAllTags: busy reports of a subscription slow down its messages of all tags, known
// before or later.
func TestBusyForAllTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := policy.NewSet([]policy.Entry{
			{Scope: policy.TagScope("early"), Settings: policy.Quota{Total: new(int64(1 << 40))}},
			{Scope: policy.TagScope("late"), Settings: policy.Quota{Total: new(int64(1 << 40))}},
		})
		require.NoError(t, err)
		source := new(permitstest.Policies)
		source.Set(set)
		lim, err := dispatch.Open(t.Context(), dispatch.Config{Policies: source})
		require.NoError(t, err)
		sub, err := lim.Subscription(topic, "group")
		require.NoError(t, err)
		early := sub.Tagged("early")
		for range 50 {
			sub.ReportOutcome(dispatch.OutcomeBusy, 0)
			_, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
		}
		for _, s := range []*dispatch.Subscription{sub, early, sub.Tagged("late")} {
			_, err := s.Acquire(t.Context(), 1)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			n := 0
			for ; n < 100; n++ {
				if _, err := s.Acquire(ctx, 1); err != nil {
					break
				}
				sub.ReportOutcome(dispatch.OutcomeBusy, 0)
			}
			cancel()
			assert.Less(t, n, 30, "one a second, about")
		}
		require.NoError(t, lim.Close())
	})
}
