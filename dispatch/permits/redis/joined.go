package redispermits

import (
	"context"
	"slices"
	"sync"
	"time"
)

// joinedFor is the longest that a call waits for others to join it: of the time that a request to a
// far server takes, a small part.
const joinedFor = 5 * time.Millisecond

// joined joins what many goroutines send at the same time into one pipeline, so that a process has
// few connections. Each pipeline takes one, which go-redis keeps: without this, the first requests
// of a hundred limits would open a hundred. While a server does not answer, a process sends it one
// pipeline at a time, so that a fleet that connects at once does not keep it from answering.
type joined struct {
	sharded bool // of several servers, some may answer

	mu       sync.Mutex // guards the fields below
	sent     int        // pipelines on their way
	next     *pipeline  // that others join; nil: none
	answered bool       // the last pipeline was
}

// A pipeline is calls of several goroutines. The first of them makes them.
type pipeline struct {
	calls []*call
	turn  chan struct{} // closed when another pipeline has ended, and this one takes its place
	done  chan struct{} // closed when the calls are made
}

// run makes the calls: at once if no others are on their way, else together with those that come
// until those have ended, or for joinedFor.
func (j *joined) run(ctx context.Context, calls []*call, run func(context.Context, []*call)) {
	if len(calls) == 0 {
		return
	}
	j.mu.Lock()
	switch p := j.next; {
	case j.sent == 0:
		j.sent++
		j.mu.Unlock()
		run(ctx, calls)
	case p != nil:
		p.calls = append(p.calls, calls...)
		j.mu.Unlock()
		<-p.done
		return
	default:
		p = &pipeline{calls, make(chan struct{}), make(chan struct{})}
		j.next = p
		j.mu.Unlock()
		defer close(p.done)
		j.wait(p)
		// The requests of other callers must not end because this call is canceled.
		ctx, cancel := detached(ctx)
		defer cancel()
		calls = p.calls
		run(ctx, calls)
	}
	j.ended(slices.ContainsFunc(calls, (*call).answered))
}

// wait returns when the pipeline is to be made. Nothing joins it any more.
func (j *joined) wait(p *pipeline) {
	timer := time.NewTimer(joinedFor)
	defer timer.Stop()
	select {
	case <-p.turn:
		return
	case <-timer.C:
	}
	j.mu.Lock()
	if j.next == p && (j.answered || j.sharded) {
		j.next = nil
		j.sent++
		j.mu.Unlock()
		return
	}
	j.mu.Unlock()
	<-p.turn
}

// ended hands the place of a pipeline to the next one.
func (j *joined) ended(answered bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.answered = answered
	if p := j.next; p != nil {
		j.next = nil
		close(p.turn)
	} else {
		j.sent--
	}
}

// detached is ctx with its deadline, but without its cancellation.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}
