package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// ErrClosed reports an Acquire on a Limiter or Subscription that has been closed.
var ErrClosed = errors.New("dispatch: closed")

// A Config says what a Limiter works with. Its zero value works: nothing is limited.
type Config struct {
	Policies  PolicySource // nil: no policies, nothing is limited
	Permits   PermitStore  // nil: a memory permit store of this Limiter's own. The Limiter does not close it
	Cluster   string       // whose namespace overrides apply, and whose permits are shared; default "standalone"
	Group     string       // of workers this process belongs to, for limits with `sharing: groups`; default none
	Replica   string       // this process's name in what it publishes; default host name, process id and a random part
	CacheFile string       // the policies last seen, for a start while their store is unavailable; default none
	// OpenTimeout is how long Open waits for the policies; default 5 s, or 1 s if CacheFile can be read.
	OpenTimeout time.Duration
	Logger      *slog.Logger // nil: silent
	OnClose     func() error // called at the end of Close, for what was opened for the Limiter; default nothing
	CostSample  float64      // probability with which a message's cost is counted (see Backend), and scaled back; default 1, all of them
	Rand        *rand.Rand   // for jitter and nonces; nil: seeded at random. Nobody else may use it
}

// A Limiter keeps the permits of one process. Any number of goroutines may use it at once.
type Limiter struct {
	cfg   Config
	log   *slog.Logger
	start time.Time
	stop  context.CancelFunc
	done  sync.WaitGroup

	process string // names this one to a Waker
	listen  func() // to it, from now on

	mu       sync.Mutex // guards the fields below and the queues' policy fields
	closed   bool
	snapshot policy.Snapshot
	queues   map[queueKey]*queue
	limits   map[string]*limit
	ties     map[[2]policy.Scope]bool // that have been logged
	lineups  map[string]lineup        // by the names of waiters
	ended    map[queueKey]*queue      // without handles, but with what a new one takes over
	backends map[string]*Backend
	families map[subscriptionKey]*family
	rates    rates
	begun    map[quota.ID]int64 // messages since the last report of usage
	usageAt  time.Time          // when that was
	bad      int                // stored policies that make no sense
	source   error              // why the policies could not be read lately; nil: they are

	answeredAt float64 // the last answer of the permit store

	tags     atomic.Pointer[map[string]bool] // that have a quota
	cacheMu  sync.Mutex                      // held while the cache file is written
	replicas atomic.Int64                    // of the cluster, when they were last counted; 0 = never

	steps    atomic.Uint64 // of the loop
	ticking  atomic.Bool   // the loop steps within a tick anyway
	wakeup   chan struct{}
	activeMu sync.Mutex // guards woken
	woken    []*queue   // queues that the loop does not step yet

	waiters  sync.Pool // of *waiter
	counters counters
}

// A queueKey tells queues apart: those of one subscription by on whose account their messages go.
type queueKey struct {
	subscriptionKey
	owner owner
}

type subscriptionKey struct {
	topic policy.Topic
	name  string
}

// A revision is when a limit last changed: revisions of different policy stores cannot be compared.
type revision struct {
	identity string
	number   int64
}

// A limit is one shared budget, as this process knows it. The loop owns all but users.
type limit struct {
	key     string
	rate    float64 // permits a second
	ramp    schedule.Ramp
	burst   float64 // permits
	round   float64 // seconds
	strict  bool
	ahead   float64   // slots of a strict line that may be allocated ahead
	queue   bool      // who finds it full waits in line
	expiry  float64   // how late one may be used, seconds
	rule    busy.Rule // by which it slows down; the zero value: not at all
	rev     revision
	undated bool // of a quota: rev is older than it should be, since the permit store\'s clock was not known
	users   int  // queues; guarded by Limiter.mu
}

// Open starts a Limiter: it reads the policies and follows them until Close. ctx bounds the
// opening only. If the policies cannot be read within Config.OpenTimeout, Open uses those of the
// cache file, logs this and goes on trying; without a cache file it fails. It does not wait after
// an error, unless the error has a method Timeout that returns true: then the store did not answer.
func Open(ctx context.Context, cfg Config) (*Limiter, error) {
	if cfg.Cluster == "" {
		cfg.Cluster = "standalone"
	}
	if err := policy.NamespaceScope("any", cfg.Cluster, "any").Validate(); err != nil {
		return nil, fmt.Errorf("dispatch: open: cluster: %w", err)
	}
	if cfg.CostSample == 0 {
		cfg.CostSample = 1
	}
	if !(cfg.CostSample >= leastSample && cfg.CostSample <= 1) {
		return nil, fmt.Errorf("dispatch: open: CostSample %v: is no probability of %v to 1", cfg.CostSample, leastSample)
	}
	if cfg.OpenTimeout < 0 {
		return nil, fmt.Errorf("dispatch: open: OpenTimeout %v: is negative: use 0 for the default", cfg.OpenTimeout)
	}
	if cfg.Permits == nil {
		cfg.Permits = memory.New()
	}
	if cfg.Policies == nil {
		cfg.Policies = Fixed(policy.Policy{})
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if cfg.Replica == "" {
		host, _ := os.Hostname() // an empty name is fine
		cfg.Replica = fmt.Sprintf("%s-%d-%04x", host, os.Getpid(), cfg.Rand.Uint32N(1<<16))
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Limiter{
		cfg: cfg, log: cfg.Logger, start: time.Now(), usageAt: time.Now(), stop: stop,
		snapshot: policy.Snapshot{Set: policy.Single(policy.Policy{})},
		queues:   map[queueKey]*queue{}, limits: map[string]*limit{}, ties: map[[2]policy.Scope]bool{}, lineups: map[string]lineup{}, ended: map[queueKey]*queue{}, backends: map[string]*Backend{}, begun: map[quota.ID]int64{}, families: map[subscriptionKey]*family{}, answeredAt: math.Inf(-1),
		process: fmt.Sprintf("%x", cfg.Rand.Uint64()),
		wakeup:  make(chan struct{}, 1), waiters: sync.Pool{New: newWaiter},
	}
	l.listen = l.listener(running)
	cached, cacheErr := l.readCache()
	if cfg.OpenTimeout == 0 && cacheErr == nil {
		cfg.OpenTimeout = cachedOpenTimeout
	} else if cfg.OpenTimeout == 0 {
		cfg.OpenTimeout = defaultOpenTimeout
	}
	hint := "" // where it fails
	if cacheErr != nil {
		hint = ": start their store or check its address, wait longer (OpenTimeout), or keep a cache file (CacheFile) to start without it"
	}
	first := make(chan error, 1)
	l.done.Go(func() { l.follow(running, first) })
	if err := await(ctx, first, cfg.OpenTimeout, hint); err != nil {
		if cacheErr != nil {
			stop()
			l.done.Wait()
			if cfg.CacheFile != "" {
				err = errors.Join(err, fmt.Errorf("dispatch: open: cache file: %w", cacheErr))
			}
			return nil, err
		}
		l.useCache(running, cached, err)
	}
	l.done.Go(func() { l.run(running) })
	l.done.Go(func() { l.publish(running) })
	l.done.Go(func() { l.followRates(running) })
	return l, nil
}

// How long Open waits for the policies.
const (
	defaultOpenTimeout = 5 * time.Second
	cachedOpenTimeout  = time.Second // if there is a cache file to go on with
)

// await returns nil once first says that the policies are known, or why they are not: an error of
// their source, at once unless it is a time-out, or the end of timeout or ctx.
func await(ctx context.Context, first <-chan error, timeout time.Duration, hint string) error {
	start := time.Now()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	last := errors.New("their store has not answered")
	for {
		select {
		case err := <-first:
			if err == nil {
				return nil
			}
			t, ok := errors.AsType[interface {
				error
				Timeout() bool
			}](err)
			if last = err; !ok || !t.Timeout() {
				return fmt.Errorf("dispatch: open: %w", err)
			}
		case <-ctx.Done():
			return fmt.Errorf("dispatch: open: no policies after %v: %w; last: %w", time.Since(start).Round(time.Millisecond), context.Cause(ctx), last)
		case <-timer.C:
			return fmt.Errorf("dispatch: open: no policies after %v: %w%s", timeout, last, hint)
		}
	}
}

// Close ends the Limiter and joins what it started. Those who wait get ErrClosed; permits that
// are allocated and not spent are given back. A second call does nothing.
func (l *Limiter) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	for _, q := range l.queues {
		q.plan.Store(&plan{closed: true, queue: q})
	}
	queues := l.queues
	l.queues = map[queueKey]*queue{}
	l.mu.Unlock()
	l.stop()
	l.done.Wait()
	for _, q := range queues {
		q.serve(time.Now())
	}
	if l.cfg.OnClose != nil {
		return l.cfg.OnClose()
	}
	return nil
}

// clock is the Limiter's: seconds since it was opened, and one, so that 0 stays "never".
func (l *Limiter) clock(t time.Time) float64 { return 1 + t.Sub(l.start).Seconds() }

func (l *Limiter) wake() {
	select {
	case l.wakeup <- struct{}{}:
	default:
	}
}

// tick is the shortest time between two steps of the loop.
const tick = 2 * time.Millisecond

// run steps the queues that have something to do, and allocates for all of them. One call of the
// permit store carries all that falls due together.
func (l *Limiter) run(ctx context.Context) {
	answers := make(chan []*call)
	var calls sync.WaitGroup
	defer calls.Wait()
	var active []*queue
	defer func() { l.farewell(active) }()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	timeout := l.cfg.Permits.Timeout().Seconds()
	under := 0 // calls under way
	for {
		var answered []*call
		select {
		case <-ctx.Done():
			for ; under > 0; under-- {
				done := <-answers
				l.mu.Lock() // a waiter may be woken
				for _, c := range done {
					c.account.answered(c, l.clock(time.Now()), 0)
				}
				l.mu.Unlock()
			}
			return
		case <-l.wakeup:
		case <-timer.C:
		case answered = <-answers:
			under--
		}
		l.ticking.Store(false) // who comes while the queues are stepped wakes the loop again
		l.steps.Add(1)
		t := time.Now()
		now := l.clock(t)

		l.activeMu.Lock()
		active = append(active, l.woken...)
		l.woken = l.woken[:0]
		l.activeMu.Unlock()

		l.mu.Lock()
		l.settle(answered, now)
		next, strict := math.Inf(1), math.Inf(1)
		var out []*call
		kept := active[:0]
		for _, q := range active {
			if !q.touched.Swap(false) && now < q.due {
				next = min(next, q.due)
				if q.limits.paced != nil {
					strict = min(strict, q.due)
				}
				kept = append(kept, q)
				continue
			}
			at, idle := q.step(t, now, now-q.due, timeout, &out)
			if idle {
				q.active.Store(false)
				if q.waiters.Load() == 0 && !q.busy() {
					continue
				}
				q.active.Store(true) // somebody came in between
				at = now
			}
			q.due = at
			next = min(next, at)
			if q.limits.paced != nil {
				strict = min(strict, at)
			}
			kept = append(kept, q)
		}
		clear(active[len(kept):])
		active = kept
		l.mu.Unlock()

		if len(out) > 0 {
			under += l.send(out, answers, &calls)
		}
		wait := time.Hour
		if next < now+3600 {
			wait = max(tick, time.Duration((next-now)*float64(time.Second)))
		}
		if strict < now+3600 { // keeps its time
			wait = min(wait, max(tick/20, time.Duration((strict-now)*float64(time.Second))))
		}
		if wait <= tick { // who has come meanwhile is served then
			l.ticking.Store(true)
			select {
			case <-l.wakeup:
			default:
			}
		}
		timer.Reset(time.Until(t.Add(wait)))
	}
}

// send makes one call of the permit store for all allocations and one for each visit, in the background, and says how many answers there
// will be.
func (l *Limiter) send(out []*call, answers chan<- []*call, calls *sync.WaitGroup) (n int) {
	out = slices.DeleteFunc(out, func(c *call) bool {
		if c.visit != nil {
			n++
			calls.Go(func() {
				l.visit(c)
				answers <- []*call{c}
			})
		}
		return c.visit != nil
	})
	if len(out) == 0 {
		return n
	}
	calls.Go(func() {
		l.allocate(out...)
		answers <- out
	})
	return n + 1
}

// allocate makes allocations in one call of the permit store, which ends by its own timeout: a call that was sent is waited for.
func (l *Limiter) allocate(calls ...*call) {
	requests := make([]*permits.Request, len(calls))
	for i, c := range calls {
		requests[i] = &permits.Request{Key: c.allocation.Key, Allocate: &permits.Allocate{Request: c.allocation.Request}}
	}
	l.cfg.Permits.Do(context.Background(), requests)
	done := l.clock(time.Now())
	for i, c := range calls {
		c.reply, c.done = allocated{requests[i].Allocate.Reply, requests[i].Err}, done
	}
}

// damaged logs that a record in the permit store was not used.
func (l *Limiter) damaged(r *permits.Request) {
	if r.Err == nil && r.Damage != nil {
		l.log.Warn("a limit's record in the permit store was damaged, and has been replaced", "limit", r.Key, "error", r.Damage)
	}
}

// farewell gives back what is allocated when the Limiter ends.
func (l *Limiter) farewell(active []*queue) {
	var calls []*call
	now := l.clock(time.Now())
	l.mu.Lock() // Stats may be read still
	for _, q := range active {
		for _, a := range q.accounts() {
			if a.split != nil {
				q.tend(a, now, true)
				continue
			}
			if a.groups != nil {
				if c := a.goodbye(now, l.cfg.Permits.Timeout().Seconds()); a.failures == 0 {
					l.done.Go(func() { l.visit(c) })
				}
				continue
			}
			if (a.held()+a.expired > 0 || a.lining()) && a.failures == 0 {
				calls = append(calls, a.farewell(now, l.cfg.Permits.Timeout().Seconds()))
			}
		}
	}
	l.mu.Unlock()
	if len(calls) > 0 {
		l.allocate(calls...)
	}
}

// awayAfter is how long nothing must have been answered until the permit store counts as away, in seconds: one limit that
// cannot be allocated beside others that can is no reason.
const awayAfter = 0.5

// settle takes answers in. The caller holds l.mu.
func (l *Limiter) settle(answers []*call, now float64) {
	for _, c := range answers {
		c.account.answered(c, now, l.cfg.Rand.Float64())
		c.account.queue.touched.Store(true)
		l.count(c.account, c.reply.Err, c.reply.Err == nil && c.reply.Reply.Late, now)
	}
}

// count counts an answer for an account that has taken it in, and logs when the permit store goes and comes. The caller holds l.mu.
func (l *Limiter) count(a *account, err error, late bool, now float64) {
	l.counters.requests.Add(1)
	known := a.faulty
	if err != nil {
		l.counters.errors.Add(1)
		if now-l.answeredAt > awayAfter && l.counters.away.CompareAndSwap(false, true) {
			l.log.Warn("the permit store does not answer; each limit goes on as its onOutage says", "error", err)
		}
		if a.faulty = known || now-a.lostAt > 2*awayAfter && !l.counters.away.Load(); a.faulty && !known {
			l.log.Warn("a limit cannot be allocated; it goes on as its onOutage says", "limit", a.limit.key, "error", err)
		}
		return
	}
	l.answeredAt = now
	if late {
		l.counters.late.Add(1)
		return
	}
	if l.counters.away.CompareAndSwap(true, false) {
		l.log.Info("the permit store answers again")
	}
	if a.faulty = false; known {
		l.log.Info("a limit can be allocated again", "limit", a.limit.key)
	}
}

// step brings a queue to now: it releases what is due, serves those who wait, and allocates what is wanted then. It says
// when it wants the next step, and whether it needs one at all. The caller holds limiter.mu.
func (q *queue) step(t time.Time, now, late, timeout float64, out *[]*call) (at float64, idle bool) {
	q.stale(t)
	step := q.limiter.steps.Load()
	accounts, bytes := q.limits.all(), len(q.limits.messages)
	for i, a := range accounts {
		a.advance(step, now, late, q.demand(a, i >= bytes))
	}
	for _, a := range q.retired {
		a.advance(step, now, late, demand{})
	}
	q.followPermits()
	p := q.plan.Load()
	if p != nil || q.waiters.Load() > 0 {
		q.serve(t)
	}

	at, idle = math.Inf(1), true
	allocate := func(a *account, w demand, gone bool) {
		if a.split != nil {
			q.tend(a, now, gone)
		}
		if c := a.allocate(step, now, w, gone, timeout); c != nil {
			if a.limit.rule.Mode != busy.None {
				q.family.outcomes.heard(a)
				c.allocation.Request.Answers = a.unheard
			}
			c.allocation.Request.Nonce = 1 + q.limiter.cfg.Rand.Int64N(1<<52)
			*out = append(*out, c)
		}
		at = min(at, a.wakeAt(now, w))
		idle = idle && a.idle()
		if back := t.Add(time.Duration((a.comeBack(now) - now) * float64(time.Second))); back.Sub(*a.next.Load()).Abs() > tick/4 {
			a.next.Store(&back)
		}
	}
	for i, a := range accounts {
		w := a.wanted // who was served comes back soon
		if q.waiters.Load() > 0 || a.open {
			w = q.demand(a, i >= bytes) // who was not may wait for another limit now
		}
		allocate(a, w, p != nil && p.closed && a.dropAt == 0)
	}
	for _, a := range q.retired { // of limits that are gone
		allocate(a, demand{}, true)
	}
	q.retired = slices.DeleteFunc(q.retired, func(a *account) bool { return a.idle() && a.avail.Load() >= 0 })
	if q.caughtUp {
		at, idle = min(at, now+q.validUntil.Sub(t).Seconds()), false
	}
	return at, idle && q.waiters.Load() == 0
}

// busy says that an account has something to do.
func (q *queue) busy() bool {
	for _, a := range q.accounts() {
		if !a.idle() || a.refused.Load() > 0 {
			return true
		}
	}
	return false
}
