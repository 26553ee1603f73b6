package permits

import (
	"context"
	"errors"
	"sync"
	"time"
)

// MaxTimeout is the longest time-out that a Timeout grows to, unless it begins with a longer one.
const MaxTimeout = 2 * time.Second

// maxLate is how many calls in a row the time-out may end before it grows: a store that freezes for
// half a second is not far away.
const maxLate = 3

// A Timeout bounds the calls of a permit store by what they take: by four times a recent call, but
// by no less than what it begins with. The third call in a row that it has ended, and each after
// that, make it twice as long, up to MaxTimeout, so that a store that is further away than expected
// is reached in the end. Any number of goroutines may use one at once.
type Timeout struct {
	base time.Duration

	mu      sync.Mutex // guards the fields below
	current time.Duration
	late    int       // calls in a row that the time-out has ended
	lateAt  time.Time // when it ended the last one
}

// NewTimeout returns a Timeout that begins with base.
func NewTimeout(base time.Duration) *Timeout { return &Timeout{base: base, current: base} }

// Current is the time-out of a call that begins now.
func (t *Timeout) Current() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current
}

// Max is the longest time-out.
func (t *Timeout) Max() time.Duration { return max(t.base, MaxTimeout) }

// Bound bounds a call by the time-out, and learns from what it takes until done is called.
func (t *Timeout) Bound(parent context.Context) (ctx context.Context, done func()) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(parent, t.Current())
	return ctx, func() {
		late := errors.Is(ctx.Err(), context.DeadlineExceeded)
		cancel()
		if parent.Err() == nil {
			t.learn(start, time.Now(), late)
		}
	}
}

// learn takes in a call, and whether the time-out has ended it. The time-out grows at once to four
// times what a call takes, and shrinks by an eighth of the difference.
func (t *Timeout) learn(start, end time.Time, late bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch want := max(t.base, 4*end.Sub(start)); {
	case late && start.Before(t.lateAt): // of several at once, one counts
	case late:
		t.lateAt = end
		if t.late++; t.late >= maxLate {
			t.current = min(2*t.current, t.Max())
		}
	case want >= t.current:
		t.late, t.current = 0, min(want, t.Max())
	default:
		t.late = 0
		t.current = max(want, t.current-max(time.Millisecond, (t.current-want)/8))
	}
}
