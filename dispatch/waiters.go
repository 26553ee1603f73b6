package dispatch

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A waiter's name in the permit store's queue for slots of a strict line leads to the account that waits under it.
type lineup struct {
	queue   *queue
	account *account
}

// lineUp gives an account a name to queue under, or takes it away. The caller holds l.mu.
func (q *queue) lineUp(a *account) {
	l := q.limiter
	switch wanted := a.strict != nil && a.limit.queue; {
	case wanted:
		if a.waiter == "" {
			a.waiter = fmt.Sprintf("%s|%x", l.process, l.cfg.Rand.Uint64())
		}
		l.lineups[a.waiter] = lineup{q, a}
		l.listen()
	case a.waiter != "":
		delete(l.lineups, a.waiter)
		a.waiter = ""
	}
}

// listener returns what has the permit store wake this process's waiters until ctx ends, if it can: at the first call.
func (l *Limiter) listener(ctx context.Context) func() {
	return sync.OnceFunc(func() {
		if waker, ok := l.cfg.Permits.(Waker); ok {
			l.done.Go(func() {
				if err := waker.Wakes(ctx, l.process, l.wokenUp); err != nil && ctx.Err() == nil {
					l.log.Warn("nobody is woken when a slot frees; those who queue come when it is expected", "error", err)
				}
			})
		}
	})
}

// wokenUp has a waiter ask for his slot now.
func (l *Limiter) wokenUp(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.lineups[name]; ok && !l.closed && w.account.strict != nil {
		w.account.retryAt = 0
		w.account.strict.wokenAt = l.clock(time.Now())
		w.queue.activate()
	}
}
