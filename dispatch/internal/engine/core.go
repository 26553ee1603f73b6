package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// A core is what the lanes of one engine have in common.
type core struct {
	env     sharing.Env          // guarded by Engine.mu, but for what does not change
	start   time.Time            // of the engine
	timeout func() time.Duration // the permit store's
	steps   atomic.Uint64
	inbox   inbox

	callers sync.Pool // of *caller
}

// clock returns t on the engine's clock: seconds since the start, plus one, so that 0 can mean
// never. Any goroutine may call it.
func (c *core) clock(t time.Time) float64 { return 1 + t.Sub(c.start).Seconds() }

// time is the inverse of clock, and a microsecond later: a caller that comes then is not before
// the loop's step of that moment. Any goroutine may call it.
func (c *core) time(at float64) time.Time { return c.start.Add(seconds(at-1) + time.Microsecond) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// tick is the shortest sleep of the loop, if no touch and no answer ends it.
const tick = 2 * time.Millisecond

// An inbox has the lanes that were touched since the last step of the loop. Any goroutine may put
// one in.
type inbox struct {
	ticking atomic.Bool   // a step follows within a tick: touch need not wake the loop
	wakeup  chan struct{} // ends the loop's sleep

	mu      sync.Mutex // guards touched
	touched []*Lane
	spare   []*Lane // the other buffer of touched; the loop's
}

// touch has the loop step a lane soon: at once if the loop sleeps for long, else within a tick.
// With now it need not wait for a tick. Any goroutine may call it.
func (l *Lane) touch(now bool) {
	in := &l.core.inbox
	if !l.touched.Swap(true) {
		in.mu.Lock()
		in.touched = append(in.touched, l)
		in.mu.Unlock()
	} else if !now {
		return
	}
	if now || !in.ticking.Load() {
		in.wake()
	}
}

// wake ends the loop's sleep. Any goroutine may call it.
func (in *inbox) wake() {
	select {
	case in.wakeup <- struct{}{}:
	default:
	}
}

// take returns the lanes that were touched, and forgets them. The result is valid until the next
// call, by the loop's goroutine alone.
func (in *inbox) take() []*Lane {
	in.mu.Lock()
	defer in.mu.Unlock()
	touched := in.touched
	in.touched, in.spare = in.spare[:0], touched
	return touched
}
