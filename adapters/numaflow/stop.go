package numaflowthrottle

import (
	"context"
	"time"
)

// What happens when the process is told to stop:
//
//  1. The context of WithProcess ends. Messages that wait for permits, or for a busy system, get
//     them for another stopPatience.
//  2. What still waits then is handed back: a sink answers with a failure, or with a nack
//     (WithNacks); a map only with a nack. A source's Read ends with its TimeOut.
//  3. The SDK ends the streams. Without WithProcess, everything waits until then.

// WithProcess tells by ctx when the process is to stop, as signal.NotifyContext does. Messages that
// still wait four seconds later are handed back, so that a stop takes at most five: a sink answers
// with a failure, or with a nack ([WithNacks]); a map only with WithNacks. The default is to wait
// until the SDK ends the stream. It is for sinks, maps and transformers.
func WithProcess(ctx context.Context) Option { return func(o *options) { o.process = ctx } }

// stopPatience is how long messages may wait for permits when the process is to stop.
const stopPatience = 4 * time.Second

// handBackAfter returns a context that ends stopPatience after the process is to stop, or nil if
// process is nil.
func handBackAfter(process context.Context) context.Context {
	if process == nil {
		return nil
	}
	handBack, cancel := context.WithCancel(context.Background())
	context.AfterFunc(process, func() { time.AfterFunc(stopPatience, cancel) })
	return handBack
}

// patience returns a context for messages that wait for permits. It ends with ctx, or when
// waiting messages are handed back.
//
// Messages that come after that get stopPatience of their own. But if they were nacked, a source
// that redelivers at once would send them again at once: so with nacks they wait for their
// permits, and what comes again is bounded by the limit.
func (v *vertex) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	switch {
	case v.handBack == nil:
		return ctx, func() {}
	case v.handBack.Err() == nil:
		waiting, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(v.handBack, cancel)
		return waiting, func() { stop(); cancel() }
	case v.nacks:
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, stopPatience)
}

// refuse is called for messages without a permit. If the Limiter is closed, it returns when the
// stream ends: then nothing is lost, and the data plane does not retry at once. With nacks it
// returns after a second.
func (v *vertex) refuse(ctx context.Context, err error) {
	if !v.limiterClosed(err) {
		return
	}
	if v.nacks {
		waiting, cancel := context.WithTimeout(ctx, nackDelay)
		defer cancel()
		ctx = waiting
	}
	<-ctx.Done()
}
