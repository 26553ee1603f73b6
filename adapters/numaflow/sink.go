package numaflowthrottle

import (
	"context"
	"sync"

	"github.com/numaproj/numaflow-go/pkg/sinker"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Sink applies the limits of lim to s. A batch is passed to s in slices, in its order, as permits
// come: a slice has the messages whose permits came while the slice before was handled, or within
// 50 ms. So s is called several times for a batch, and every datum is answered. While nothing is
// limited, s gets the batch as it comes. A nil lim limits nothing.
//
// A datum that s answers with [Busy] is passed to s again, when its time has come and it has a
// permit, until s answers otherwise. The data plane waits meanwhile: no message is lost, whatever
// the source and the vertex's retryStrategy.
//
// What waits for a permit or a busy system when the process stops ([WithProcess]) is answered
// with a failure: four seconds after the stop, and in later calls four seconds after the call.
// The data plane of a vertex that stops does not retry, and acknowledges nothing of such a batch;
// a data plane that continues retries by its retryStrategy.
//
// A datum that the data plane sends again is not charged again, unless s was busy or refused it
// with a nack: the last 10,000 charged IDs are remembered.
//
// The error is the fault of the topic's or subscription's name, or dispatch.ErrClosed.
func Sink(s sinker.Sinker, lim *dispatch.Limiter, opts ...Option) (sinker.Sinker, error) {
	if lim == nil {
		return s, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return &sink{s, v, newCharged()}, nil
}

type sink struct {
	inner sinker.Sinker
	*vertex
	charged charged
}

// Sink is the user's, with permits.
func (s *sink) Sink(ctx context.Context, in <-chan sinker.Datum) sinker.Responses {
	waiting, cancel := s.patience(ctx)
	defer cancel()
	b := &sinkBatch{sink: s, ctx: ctx, waiting: waiting}
	b.handle(in)
	for len(b.busy) > 0 {
		b.handle(b.due())
	}
	return b.responses
}

// A sinkBatch is what the data plane sends at a time.
type sinkBatch struct {
	*sink
	ctx       context.Context
	waiting   context.Context // ends when waiting messages are handed back
	responses sinker.Responses
	busy      []busyDatum
}

// handle passes data to the user's sink.
func (b *sinkBatch) handle(in <-chan sinker.Datum) {
	if b.unlimited() {
		b.handleUnlimited(in)
		return
	}
	admission := b.admission()
	admit := func(d sinker.Datum) (grant dispatch.Grant, err error) {
		if b.charged.has(d.ID()) {
			return grant, nil
		}
		return admission.next(b.waiting, sinkSize(d), d.Headers())
	}
	refused, err := inSlices(in, b.sub.Paced(), admit, admission.end, b.handleSlice)
	if err != nil {
		b.refuse(b.ctx, err)
		b.handBackData(refused, err)
	}
}

// handleSlice passes data that have permits to the user's sink.
func (b *sinkBatch) handleSlice(slice []permitted[sinker.Datum]) {
	again := map[string]bool{}
	handled := false
	defer func() { // the user's sink may panic
		for i := range slice {
			if handled {
				slice[i].grant.Done(1, sinkSize(slice[i].datum))
				b.charged.set(slice[i].datum.ID(), !again[slice[i].datum.ID()])
			} else {
				slice[i].grant.Done(0, 0)
			}
		}
	}()
	data := map[string]sinker.Datum{}
	for _, p := range slice {
		data[p.datum.ID()] = p.datum
	}
	for _, a := range b.inner.Sink(b.ctx, channelOf(slice)) {
		again[a.ID] = b.answer(data[a.ID], a)
	}
	handled = true
}

// handleUnlimited passes data that need no permits, as they come.
func (b *sinkBatch) handleUnlimited(in <-chan sinker.Datum) {
	var mu sync.Mutex // guards data: the user's sink may return before it has all of them
	data, passed := map[string]sinker.Datum{}, make(chan sinker.Datum)
	stop := make(chan struct{})
	go func() {
		defer close(passed)
		for d := range in {
			mu.Lock()
			data[d.ID()] = d
			mu.Unlock()
			select {
			case passed <- d:
			case <-stop:
			}
		}
	}()
	defer close(stop)
	answers := b.inner.Sink(b.ctx, passed)
	mu.Lock()
	defer mu.Unlock()
	for _, a := range answers {
		b.answer(data[a.ID], a)
	}
}

// answer takes the user's answer for a datum. It reports whether the datum comes again.
func (b *sinkBatch) answer(d sinker.Datum, a sinker.Response) (again bool) {
	after, busy := busyFor(a)
	switch {
	case !busy || d == nil: // an unknown datum: the data plane will say so
		b.responses = append(b.responses, a)
		return a.Nack
	case b.nacks:
		b.responses = append(b.responses, sinker.ResponseNack(a.ID, a.NackOptions))
	default:
		b.retryAfter(d, after)
	}
	return true
}

// handBackData answers data that cannot be handled now.
func (b *sinkBatch) handBackData(data []sinker.Datum, reason error) {
	for _, d := range data {
		if b.nacks {
			b.responses = append(b.responses, sinker.ResponseNack(d.ID(), nack(reason)))
		} else {
			b.responses = append(b.responses, sinker.ResponseFailure(d.ID(), reason.Error()))
		}
	}
}

func sinkSize(d sinker.Datum) int64 { return size(d.Value(), d.Keys(), d.Headers()) }
