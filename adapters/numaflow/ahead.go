package numaflowthrottle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// An ahead acquires permits for the next batch while nobody waits for one: the data plane asks for a batch only when the last
// one is acknowledged, and what the limit is worth in that gap would be lost. It holds at most one batch, and, since permits
// come at the limit, at most what the gap is worth. If no batch comes, the permits go back.
type ahead struct {
	sub *dispatch.Subscription
	one bool // permits are acquired one by one, for callers that take one

	mu      sync.Mutex
	grants  []aged // the oldest first
	held    int    // permits of them
	users   int    // between enter and leave
	stop    context.CancelFunc
	started int           // times that acquire was started
	last    time.Time     // when somebody took or waited for a permit
	gap     time.Duration // between batches, the longest of late
	batch   int           // messages of the batch under way
	before  int           // messages of the batch before
	limited bool          // somebody in the batch had to wait, or had a permit that was acquired ahead
}

// An aged Grant was acquired at a time.
type aged struct {
	dispatch.Grant
	at time.Time
}

const (
	// renewAfter is when a Grant that is held goes back and another one is acquired, before Grant.Hold ends.
	renewAfter = 2500 * time.Millisecond
	holdGrant  = 3 * time.Second

	// firstHold is how long permits are held when no gap has been seen.
	firstHold = 3 * time.Second

	// minGap tells batches apart.
	minGap = 10 * time.Millisecond

	// maxGap bounds what a gap counts as: permits are held for two of them at most.
	maxGap = 30 * time.Second

	// defaultTimeout is Numaflow's readTimeout, for vertices that are not told theirs.
	defaultTimeout = time.Second
)

// seen notes that messages have come. The caller holds a.mu.
func (a *ahead) seen(now time.Time) {
	if gap := now.Sub(a.last); !a.last.IsZero() && gap > minGap && a.users == 0 {
		a.gap = min(max(gap, a.gap*3/4), maxGap)
		a.before, a.batch, a.limited = a.batch, 0, false
	}
	a.last = now
}

// enter stops the acquiring: the caller waits for permits itself, until leave.
func (a *ahead) enter() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen(time.Now())
	if a.users++; a.stop != nil {
		a.stop()
		a.stop = nil
	}
}

// take takes a permit that was acquired ahead, if there is one.
func (a *ahead) take() (g dispatch.Grant, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen(time.Now())
	a.batch++
	if len(a.grants) == 0 {
		return g, false
	}
	g = a.grants[0].Grant
	a.grants = a.grants[1:]
	a.held--
	a.limited = true
	return g, true
}

// takeAll takes what was acquired ahead, up to max permits. The rest goes back.
func (a *ahead) takeAll(max int) (grants []dispatch.Grant, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.grants {
		if g := &a.grants[i].Grant; n+g.N() <= max {
			grants, n = append(grants, *g), n+g.N()
		} else {
			g.Done(0, 0)
		}
	}
	a.grants, a.held = nil, 0
	return grants, n
}

// leave ends enter; waited says that the caller had to wait. With the last caller, permits for as many messages as a batch has
// are acquired, if the limit holds up batches.
func (a *ahead) leave(waited bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limited = a.limited || waited
	n := 0
	if a.limited {
		n = max(a.batch, a.before)
	}
	a.left(context.Background(), n, defaultTimeout)
}

// leaveFor is leave for a batch of n, until ctx ends.
func (a *ahead) leaveFor(ctx context.Context, n int, timeout time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left(ctx, n, timeout)
}

// left starts the acquiring when the last user leaves. The caller holds a.mu.
func (a *ahead) left(ctx context.Context, n int, timeout time.Duration) {
	a.last = time.Now()
	if a.users--; a.users > 0 || n == 0 || !a.sub.Limited() || a.sub.Paced() {
		return
	}
	hold := max(2*a.gap, timeout)
	if a.gap == 0 {
		hold = max(firstHold, timeout) // nobody knows how long it takes
	}
	ctx, a.stop = context.WithTimeout(ctx, hold)
	a.started++
	go a.acquire(ctx, a.started, n)
}

// acquire holds up to n permits until ctx ends. It gives back those that nobody has taken by then.
func (a *ahead) acquire(ctx context.Context, run, n int) {
	for {
		free, until, ok := a.renew(run, n)
		if !ok {
			return
		}
		if ctx.Err() != nil || a.sub.Paced() {
			a.giveBack(run)
			return
		}
		if end, _ := ctx.Deadline(); end.Before(until) {
			until = end
		}
		if free == 0 {
			time.AfterFunc(time.Until(until), func() { a.acquire(ctx, run, n) })
			return
		}
		if a.one {
			free = 1
		}
		waiting, cancel := context.WithDeadline(ctx, until)
		g, err := a.sub.Acquire(waiting, free)
		cancel()
		if errors.Is(err, dispatch.ErrClosed) {
			a.giveBack(run)
			return
		}
		if err == nil && !a.add(run, g) {
			return
		}
	}
}

// renew gives back the permits that are too old, and returns for how many there is room, and when the next ones are too old; not
// ok: somebody else acquires now.
func (a *ahead) renew(run, n int) (free int, until time.Time, ok bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.started != run || a.stop == nil {
		return 0, until, false
	}
	for len(a.grants) > 0 && now.Sub(a.grants[0].at) >= renewAfter {
		a.held -= a.grants[0].N()
		a.grants[0].Done(0, 0)
		a.grants = a.grants[1:]
	}
	until = now.Add(renewAfter)
	if len(a.grants) > 0 {
		until = a.grants[0].at.Add(renewAfter)
	}
	return max(0, n-a.held), until, true
}

// add keeps a Grant; false: it is not to be held, or nobody may acquire any more.
func (a *ahead) add(run int, g dispatch.Grant) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Messages in flight are not held: others in this process may wait for their places.
	if a.started != run || a.stop == nil || !g.Limited() || g.InFlight() {
		g.Done(0, 0)
		return false
	}
	g.Hold(holdGrant)
	a.grants = append(a.grants, aged{g, time.Now()})
	a.held += g.N()
	return true
}

// giveBack gives back what nobody has taken.
func (a *ahead) giveBack(run int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.started != run || a.stop == nil {
		return // for the batch that has begun
	}
	for i := range a.grants {
		a.grants[i].Done(0, 0)
	}
	a.grants, a.held = nil, 0
	a.stop()
	a.stop = nil
}
