package numaflowthrottle

import (
	"context"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// An ahead acquires permits for the next batch while no batch is under way: the data plane sends
// a batch only when the last one is acknowledged, and what the limit allows in that gap would be
// lost. It holds at most one batch and, since permits come at the limit, at most what the limit
// allows in the gap. If no batch comes, the permits go back.
type ahead struct {
	sub    *dispatch.Subscription
	single bool // permits are acquired one by one, for callers that take one

	mu      sync.Mutex
	grants  []dispatch.Grant // the oldest first
	users   int              // callers between enter and leave
	stop    context.CancelFunc
	runs    int           // how often acquire was started
	last    time.Time     // when a caller last took or waited for a permit
	gap     time.Duration // the longest of the last gaps between batches
	batch   int           // messages of the batch under way
	before  int           // messages of the batch before
	limited bool          // a message of the batch had to wait, or took a permit from here
}

const (
	// holdGrant is for how long a Grant can be given back: as long as Grant.Hold allows.
	holdGrant = 3 * time.Second

	// firstHold is how long permits are held before a gap has been seen: all of them can go back.
	firstHold = 2500 * time.Millisecond

	// minGap tells batches apart.
	minGap = 10 * time.Millisecond

	// maxGap bounds what a gap counts as: permits are held for two gaps at most.
	maxGap = 30 * time.Second

	// defaultTimeout is Numaflow's default readTimeout, for vertices that do not know theirs.
	defaultTimeout = time.Second
)

// noteMessages notes that messages have come. The caller holds a.mu.
func (a *ahead) noteMessages(now time.Time) {
	if gap := now.Sub(a.last); !a.last.IsZero() && gap > minGap && a.users == 0 {
		a.gap = min(max(gap, a.gap*3/4), maxGap)
		a.before, a.batch, a.limited = a.batch, 0, false
	}
	a.last = now
}

// enter stops acquire: until leave, the caller waits for permits itself.
func (a *ahead) enter() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noteMessages(time.Now())
	a.users++
	if a.stop != nil {
		a.stop()
		a.stop = nil
	}
}

// take returns a held permit, if there is one.
func (a *ahead) take() (g dispatch.Grant, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noteMessages(time.Now())
	a.batch++
	if len(a.grants) == 0 {
		return g, false
	}
	g = a.grants[0]
	a.grants = a.grants[1:]
	a.limited = true
	return g, true
}

// takeAll returns the held permits, n and at most limit. The rest go back.
func (a *ahead) takeAll(limit int) (grants []dispatch.Grant, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.grants {
		if g := &a.grants[i]; n+g.N() <= limit {
			grants, n = append(grants, *g), n+g.N()
		} else {
			g.Done(0, 0)
		}
	}
	a.grants = nil
	return grants, n
}

// leave ends enter; waited says that the caller had to wait. When the last caller leaves, and the
// limit holds up batches, permits for a batch are acquired.
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

// leaveFor is leave for a batch of n messages, until ctx ends.
func (a *ahead) leaveFor(ctx context.Context, n int, timeout time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left(ctx, n, timeout)
}

// left starts acquire when the last caller leaves. The caller holds a.mu.
func (a *ahead) left(ctx context.Context, n int, timeout time.Duration) {
	a.last = time.Now()
	if a.users--; a.users > 0 || n == 0 || !a.sub.Limited() || a.sub.Paced() {
		return
	}
	hold := max(2*a.gap, timeout)
	if a.gap == 0 {
		hold = max(firstHold, timeout)
	}
	ctx, a.stop = context.WithTimeout(ctx, hold)
	a.runs++
	go a.acquire(ctx, a.runs, n)
}

// acquire holds up to n permits until ctx ends, and then gives back those that were not taken.
// Those that have been held for longer than holdGrant are lost then. To give them back before and
// acquire others would take permits from other replicas for as long as no batch comes. run is its
// number: a later one takes its place.
func (a *ahead) acquire(ctx context.Context, run, n int) {
	context.AfterFunc(ctx, func() { a.giveBack(run) })
	for room := n; room > 0; {
		want := room
		if a.single {
			want = 1
		}
		g, err := a.sub.Acquire(ctx, want)
		if err != nil || a.sub.Paced() {
			g.Done(0, 0)
			a.giveBack(run)
			return
		}
		if !a.add(run, g) {
			return
		}
		room -= g.N()
	}
}

// add holds a Grant. It returns false if the Grant is not to be held, or this run is over.
func (a *ahead) add(run int, g dispatch.Grant) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Grants that count as in flight are not held: others in this process may wait for their
	// slots.
	if a.runs != run || a.stop == nil || !g.Limited() || g.InFlight() {
		g.Done(0, 0)
		return false
	}
	g.Hold(holdGrant)
	a.grants = append(a.grants, g)
	return true
}

// giveBack gives back the permits that were not taken.
func (a *ahead) giveBack(run int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runs != run || a.stop == nil {
		return // the permits are those of the batch that has started
	}
	for i := range a.grants {
		a.grants[i].Done(0, 0)
	}
	a.grants = nil
	a.stop()
	a.stop = nil
}
