// Package receiver has what adapters share between a client's receive call and its callers:
// callers are served one at a time, and a message whose permits have not come is kept.
package receiver

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/dispatchthrottle/throttle/adapters/internal/ctxmutex"
	"github.com/dispatchthrottle/throttle/adapters/internal/generation"
	"github.com/dispatchthrottle/throttle/dispatch"
)

var (
	// ErrClosing is the error of a call that Close ended.
	ErrClosing = errors.New("receiver: closing")
	// ErrMoved is the error of a call whose generation has ended: the caller starts again.
	ErrMoved = errors.New("receiver: the generation has ended")
)

// A Receiver serves the callers of one client's consumer. Their generations end with a seek, a
// rebalance or Close. Use Open first.
type Receiver[M any] struct {
	generation.Sequence

	mutex   ctxmutex.Mutex
	closing context.Context
	close   context.CancelFunc
	waiting atomic.Bool // for permits
	keeps   atomic.Bool

	// Guarded by mutex:
	kept   M
	joined join // the last one
}

// Open makes r ready, with its first generation.
func (r *Receiver[M]) Open() {
	r.mutex.Init()
	r.closing, r.close = context.WithCancel(context.Background())
	r.Start(r.closing)
}

// Close ends all calls and generations.
func (r *Receiver[M]) Close() { r.close() }

// Drain drops the message that is kept, when the call that is served has ended, or gives up when
// ctx ends. Close comes first.
func (r *Receiver[M]) Drain(ctx context.Context) {
	if r.mutex.Lock(ctx, context.Background()) == nil {
		r.Drop()
		r.Unlock()
	}
}

// Closing returns a context that ends with Close.
func (r *Receiver[M]) Closing() context.Context { return r.closing }

// TryLock makes the caller the one that is served, if no other is. Unlike Lock it is inlined.
func (r *Receiver[M]) TryLock() bool { return r.mutex.TryLock() }

// Lock makes the caller the one that is served. The error is that of ctx, or ErrClosing.
func (r *Receiver[M]) Lock(ctx context.Context) error {
	err := r.mutex.Lock(ctx, r.closing)
	if errors.Is(err, ctxmutex.ErrClosing) {
		return ErrClosing
	}
	return err
}

// Unlock lets the next caller be served.
func (r *Receiver[M]) Unlock() { r.mutex.Unlock() }

// Receiving reports whether a caller waits for the client's next message.
func (r *Receiver[M]) Receiving() bool { return r.mutex.Locked() && !r.waiting.Load() }

// Keep keeps a message for the next caller. The caller of Keep, Kept and Drop holds the lock.
func (r *Receiver[M]) Keep(m M) {
	r.kept = m
	r.keeps.Store(true)
}

// Kept returns the message that is kept, if Keeps.
func (r *Receiver[M]) Kept() M { return r.kept }

// Keeps reports whether a message is kept. Any goroutine may ask.
func (r *Receiver[M]) Keeps() bool { return r.keeps.Load() }

// Drop forgets the message that is kept, if there is one.
func (r *Receiver[M]) Drop() {
	if r.keeps.Load() {
		var none M
		r.kept = none
		r.keeps.Store(false)
	}
}

// TryAcquire returns the permits of a message if they are there. It never waits.
func TryAcquire(sub *dispatch.Subscription, bytes int64) (dispatch.Grant, bool) {
	grant, err := sub.AcquireSized(ended, bytes)
	return grant, err == nil
}

// ended makes AcquireSized take the permits that are there, and never wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Acquire returns the permits of a message of g. It waits for them until ctx or g ends, and takes
// none then; the error is that of [Receiver.Err]. The caller holds the lock.
func (r *Receiver[M]) Acquire(
	ctx context.Context, g *generation.Generation, sub *dispatch.Subscription, bytes int64,
) (dispatch.Grant, error) {
	r.waiting.Store(true)
	defer r.waiting.Store(false)
	grant, err := sub.AcquireSized(r.Join(ctx, g), bytes)
	if err = r.Err(ctx, g, err); err != nil {
		grant.Done(0, 0)
		return dispatch.Grant{}, err
	}
	return grant, nil
}

// Err returns why a call in g has to end: ErrClosing, ErrMoved, ctx's error if the call failed and
// ctx has ended, or else err itself, the call's own error.
func (r *Receiver[M]) Err(ctx context.Context, g *generation.Generation, err error) error {
	switch {
	case g.Err() != nil:
		if r.closing.Err() != nil {
			return ErrClosing
		}
		return ErrMoved
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	}
	return err
}

// Join returns a context that ends with ctx or g. The last one is kept, since loops call with the
// same context each time. The caller holds the lock.
func (r *Receiver[M]) Join(ctx context.Context, g *generation.Generation) context.Context {
	done := ctx.Done()
	if done == nil {
		return g
	}
	if j := &r.joined; done != j.done || g != j.generation {
		if j.stop != nil {
			j.stop()
		}
		joined, cancel := context.WithCancel(ctx)
		release := context.AfterFunc(g, cancel)
		*j = join{joined, done, g, func() { release(); cancel() }}
	}
	return r.joined.Context
}

// A join is a context that ends with a caller's context or a generation.
type join struct {
	context.Context
	done       <-chan struct{} // of the caller's context
	generation *generation.Generation
	stop       func()
}
