package numaflowthrottle

import (
	"context"

	"github.com/numaproj/numaflow-go/pkg/accumulator"
	"github.com/numaproj/numaflow-go/pkg/reducer"
	"github.com/numaproj/numaflow-go/pkg/reducestreamer"
	"github.com/numaproj/numaflow-go/pkg/sessionreducer"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Reduce applies the limits of lim to the reducers that c creates: each datum waits for its
// permit before its reducer gets it. A datum that waits when the stream or the Limiter ends is
// passed on without one, since a reducer cannot refuse it. A nil lim limits nothing.
//
// The error is the fault of the topic's or subscription's name, or dispatch.ErrClosed.
func Reduce(
	c reducer.ReducerCreator, lim *dispatch.Limiter, opts ...Option,
) (reducer.ReducerCreator, error) {
	if lim == nil {
		return c, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return reducers{c, v}, nil
}

type reducers struct {
	inner reducer.ReducerCreator
	*vertex
}

// Create is the user's.
func (r reducers) Create() reducer.Reducer {
	return throttledReducer{r.inner.Create(), r.vertex}
}

type throttledReducer struct {
	inner reducer.Reducer
	*vertex
}

// Reduce is the user's, with permits.
func (r throttledReducer) Reduce(
	ctx context.Context, keys []string, in <-chan reducer.Datum, md reducer.Metadata,
) reducer.Messages {
	in, stop := throttled(ctx, r.vertex, in)
	defer stop()
	return r.inner.Reduce(ctx, keys, in, md)
}

// ReduceStream is [Reduce] for reducers that stream their results.
func ReduceStream(
	c reducestreamer.ReduceStreamerCreator, lim *dispatch.Limiter, opts ...Option,
) (reducestreamer.ReduceStreamerCreator, error) {
	if lim == nil {
		return c, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return reduceStreamers{c, v}, nil
}

type reduceStreamers struct {
	inner reducestreamer.ReduceStreamerCreator
	*vertex
}

// Create is the user's.
func (r reduceStreamers) Create() reducestreamer.ReduceStreamer {
	return reduceStreamer{r.inner.Create(), r.vertex}
}

type reduceStreamer struct {
	inner reducestreamer.ReduceStreamer
	*vertex
}

// ReduceStream is the user's, with permits.
func (r reduceStreamer) ReduceStream(
	ctx context.Context, keys []string, in <-chan reducestreamer.Datum,
	out chan<- reducestreamer.Message, md reducestreamer.Metadata,
) {
	in, stop := throttled(ctx, r.vertex, in)
	defer stop()
	r.inner.ReduceStream(ctx, keys, in, out, md)
}

// SessionReduce is [Reduce] for session reducers.
func SessionReduce(
	c sessionreducer.SessionReducerCreator, lim *dispatch.Limiter, opts ...Option,
) (sessionreducer.SessionReducerCreator, error) {
	if lim == nil {
		return c, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return sessionReducers{c, v}, nil
}

type sessionReducers struct {
	inner sessionreducer.SessionReducerCreator
	*vertex
}

// Create is the user's.
func (r sessionReducers) Create() sessionreducer.SessionReducer {
	return sessionReducer{r.inner.Create(), r.vertex}
}

type sessionReducer struct {
	sessionreducer.SessionReducer // the user's
	*vertex
}

// SessionReduce is the user's, with permits.
func (r sessionReducer) SessionReduce(
	ctx context.Context, keys []string, in <-chan sessionreducer.Datum,
	out chan<- sessionreducer.Message,
) {
	in, stop := throttled(ctx, r.vertex, in)
	defer stop()
	r.SessionReducer.SessionReduce(ctx, keys, in, out)
}

// Accumulate is [Reduce] for accumulators.
func Accumulate(
	c accumulator.AccumulatorCreator, lim *dispatch.Limiter, opts ...Option,
) (accumulator.AccumulatorCreator, error) {
	if lim == nil {
		return c, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return accumulators{c, v}, nil
}

type accumulators struct {
	inner accumulator.AccumulatorCreator
	*vertex
}

// Create is the user's.
func (a accumulators) Create() accumulator.Accumulator {
	return throttledAccumulator{a.inner.Create(), a.vertex}
}

type throttledAccumulator struct {
	inner accumulator.Accumulator
	*vertex
}

// Accumulate is the user's, with permits.
func (a throttledAccumulator) Accumulate(
	ctx context.Context, in <-chan accumulator.Datum, out chan<- accumulator.Message,
) {
	in, stop := throttled(ctx, a.vertex, in)
	defer stop()
	a.inner.Accumulate(ctx, in, out)
}

// A datum is what the reducers' data have in common.
type datum interface {
	Value() []byte
	Headers() map[string]string
}

// throttled returns a channel of the data of in, each when it has its permit. stop ends that.
func throttled[D datum](ctx context.Context, v *vertex, in <-chan D) (_ <-chan D, stop func()) {
	out := make(chan D)
	waiting, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(out)
		for {
			var d D
			select {
			case next, open := <-in:
				if !open {
					return
				}
				d = next
			case <-stopped: // in may stay open if the data plane has died
				return
			}
			bytes := size(d.Value(), nil, d.Headers())
			grant, err := v.sub.AcquireSized(waiting, bytes)
			if err != nil {
				_ = v.limiterClosed(err) // logs it
			}
			select {
			case out <- d:
				grant.Done(1, bytes)
			case <-stopped:
				grant.Done(0, 0)
				return
			}
		}
	}()
	return out, func() { cancel(); close(stopped) }
}
