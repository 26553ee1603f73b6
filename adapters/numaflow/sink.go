package numaflowthrottle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sinker"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Sink puts lim in front of s. A batch is handed to s in slices, in its order, when their permits are there: each is what permits
// came for while the one before was handled, or in 50 ms. So s is called several times for a batch, and every datum is
// answered. Where nothing is limited, s gets the batch as it comes. A nil lim limits nothing.
//
// What s answers with [Busy] is handed to s again, when its time has come and it has a permit, until s answers otherwise. The
// data plane waits for that: no message is lost, whatever the source and the vertex's retryStrategy.
//
// What waits for a permit or a busy system when the process ends ([WithProcess]) is answered with a failure. The data
// plane of a vertex that stops does not retry: it acknowledges nothing of such a batch. One that does not stop retries under
// its retryStrategy. A failure comes four seconds after the process's end, and each further one four seconds after the call.
//
// A datum that the data plane sends again is not charged again, unless s was busy or refused it with a Nack: the last 10,000 ids
// that were charged are remembered.
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
	return &sink{s, v, charged{}}, nil
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
	b.hand(in)
	for len(b.busy) > 0 {
		b.hand(b.due())
	}
	return b.responses
}

// A sinkBatch is what the data plane sends at a time.
type sinkBatch struct {
	*sink
	ctx       context.Context
	waiting   context.Context // ends when what waits is handed back
	responses sinker.Responses
	busy      []busyDatum
}

// A busyDatum is to be handed to the user's sink again.
type busyDatum struct {
	sinker.Datum
	from time.Time
}

// hand has the user's sink handle data.
func (b *sinkBatch) hand(in <-chan sinker.Datum) {
	if b.free() {
		b.handFree(in)
		return
	}
	admission := b.admission()
	refused, err := sliced(in, b.sub.Paced(),
		func(d sinker.Datum) (grant dispatch.Grant, err error) {
			if b.charged.has(d.ID()) {
				return grant, nil
			}
			return admission.next(b.waiting, sinkSize(d), d.Headers())
		}, admission.end,
		func(slice []permitted[sinker.Datum]) {
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
			for _, a := range b.inner.Sink(b.ctx, channel(slice)) {
				again[a.ID] = b.answer(data[a.ID], a)
			}
			handled = true
		})
	if err != nil {
		b.refuse(b.ctx, err)
		b.handBack(refused, err)
	}
}

// handFree hands on data that need no permits, as they come.
func (b *sinkBatch) handFree(in <-chan sinker.Datum) {
	var mu sync.Mutex // of data: the user's sink may return before it has all of them
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

// answer takes in what the user's sink says of a datum, and reports whether that comes again.
func (b *sinkBatch) answer(d sinker.Datum, a sinker.Response) (again bool) {
	after, busy := busyFor(a)
	switch {
	case !busy || d == nil: // nobody knows that datum; the data plane says so
		b.responses = append(b.responses, a)
		return a.Nack
	case b.nacks:
		b.responses = append(b.responses, sinker.ResponseNack(a.ID, a.NackOptions))
	default:
		b.busy = append(b.busy, busyDatum{d, time.Now().Add(after)})
	}
	return true
}

// due waits for the busy data whose time comes first, and returns them. If they are to be handed back instead, they are, all.
func (b *sinkBatch) due() <-chan sinker.Datum {
	first := slices.MinFunc(b.busy, func(x, y busyDatum) int { return x.from.Compare(y.from) }).from
	timer := time.NewTimer(time.Until(first.Add(sliceTime))) // those that come just after it are of the same call
	defer timer.Stop()
	in := make(chan sinker.Datum, len(b.busy))
	defer close(in)
	select {
	case <-timer.C:
	case <-b.waiting.Done():
		var data []sinker.Datum
		for _, d := range b.busy {
			data = append(data, d.Datum)
		}
		b.busy = nil
		b.handBack(data, errBusy)
		return in
	}
	now := time.Now()
	b.busy = slices.DeleteFunc(b.busy, func(d busyDatum) bool {
		due := !d.from.After(now)
		if due {
			in <- d.Datum
		}
		return due
	})
	return in
}

var errBusy = errors.New("numaflowthrottle: the process ends while a protected system is busy")

// handBack answers data that cannot be handled now.
func (b *sinkBatch) handBack(data []sinker.Datum, reason error) {
	for _, d := range data {
		if b.nacks {
			b.responses = append(b.responses, sinker.ResponseNack(d.ID(), nack(reason)))
		} else {
			b.responses = append(b.responses, sinker.ResponseFailure(d.ID(), reason.Error()))
		}
	}
}

func sinkSize(d sinker.Datum) int64 { return size(d.Value(), d.Keys(), d.Headers()) }

// Busy answers a datum for which a protected system was busy, as by an HTTP 429: the wrapper hands it to the user's sink again
// after that time, with a permit, while the data plane waits. [WithNacks] has it go back to the source instead. Where no wrapper
// is, with a nil Limiter, it is a failure.
func Busy(id string, retryAfter time.Duration) sinker.Response {
	r := sinker.ResponseFailure(id, "busy")
	r.NackOptions = &sinker.NackOptions{Delay: new(uint64(max(0, retryAfter.Milliseconds()))), Reason: new("busy")}
	return r
}

// busyFor reports whether a is Busy's: the SDK's failures have no NackOptions.
func busyFor(a sinker.Response) (retryAfter time.Duration, busy bool) {
	if a.Success || a.Fallback || a.Serve || a.OnSuccess || a.Nack || a.NackOptions == nil || a.NackOptions.Delay == nil {
		return 0, false
	}
	return time.Duration(*a.NackOptions.Delay) * time.Millisecond, true
}

// charged are the ids that were charged last.
type charged struct {
	mu   sync.Mutex
	ids  map[string]bool
	ring []string
	next int
}

const remembered = 10_000

func (c *charged) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[id]
}

// set notes that an id was charged, or is to be charged again.
func (c *charged) set(id string, charged bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		c.ids = map[string]bool{}
	}
	if _, known := c.ids[id]; !known {
		if len(c.ring) < remembered {
			c.ring = append(c.ring, id)
		} else {
			delete(c.ids, c.ring[c.next])
			c.ring[c.next] = id
			c.next = (c.next + 1) % remembered
		}
	}
	c.ids[id] = charged
}
