package numaflowthrottle

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"

	"github.com/dispatchthrottle/throttle/adapters/internal/backlog"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// Source applies the limits of lim to s. A Read acquires permits, and then asks s for as many
// messages. It asks again until it has Count messages, s has fewer than it was asked for, or
// TimeOut ends. Permits for messages that s did not deliver go back. A nil lim limits nothing.
//
// If s had as many messages as it was asked for, permits for the next Read are acquired from the
// end of this one on: at most one batch, and as many as the limit allows in the time between the
// Reads, the gap. So in any interval d, at most limit x (d + gap) messages are read. Unused
// permits go back after two gaps, or after TimeOut if that is longer. With strict sharing or
// maxInFlight, none are acquired between Reads.
//
// The backlog is what Pending of s returns, asked once a second while there is a limit.
//
// The messages that a data plane has read when it dies will never be acknowledged: s gets them in
// Nack, or the wrapper delivers them again ([WithRequeue]).
//
// The error is the fault of the topic's or subscription's name, or dispatch.ErrClosed.
func Source(s sourcer.Sourcer, lim *dispatch.Limiter, opts ...Option) (sourcer.Sourcer, error) {
	if lim == nil {
		return s, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	v.ahead.single = false
	wrapped := &source{Sourcer: s, vertex: v, opened: time.Now()}
	wrapped.unacknowledged.requeue = v.requeue
	wrapped.polled.Store(-int64(backlog.Interval))
	return wrapped, nil
}

type source struct {
	sourcer.Sourcer // the user's
	*vertex
	unacknowledged unacknowledged

	// supply is how many messages the user's source delivered in the largest call of a Read, if it
	// delivered as many as it was asked for in each; otherwise 0.
	supply atomic.Int64

	opened  time.Time
	polled  atomic.Int64 // when the backlog was asked for, in nanoseconds since opened
	polling sync.Mutex   // held by the goroutine that asks: Pending may take its time

	// panicked is what the user's source panicked with when it was not the data plane that called.
	panicked atomic.Pointer[any]
}

// Read is the user's, with permits. The data plane calls one Read at a time.
func (s *source) Read(
	ctx context.Context, request sourcer.ReadRequest, out chan<- sourcer.Message,
) {
	if p := s.panicked.Swap(nil); p != nil {
		panic(*p)
	}
	start := time.Now()
	deadline := start.Add(request.TimeOut())
	s.follow(ctx)
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if request.TimeOut() > backlog.Interval || s.pollDue(start) {
		go s.pollBacklog(waiting)
	}
	p := &permits{source: s, ctx: waiting, left: int(min(request.Count(), math.MaxInt32))}
	s.ahead.enter()
	defer s.acquireAhead(ctx, p, p.left, request.TimeOut())
	largest := 0 // messages of one call
	for first := true; ; first = false {
		asked := p.take(int(s.supply.Load()))
		if asked == 0 || !first && !time.Now().Before(deadline) {
			return
		}
		call := &readRequest{uint64(asked), max(0, time.Until(deadline))}
		delivered := s.deliver(ctx, call, out, p)
		if delivered < asked {
			s.supply.Store(0)
			return // there are no more, or TimeOut is over
		}
		largest = max(largest, delivered)
		s.supply.Store(int64(largest))
	}
}

// acquireAhead ends a Read: permits for the next one are acquired until it comes, if the user's
// source has more messages.
func (s *source) acquireAhead(
	ctx context.Context, p *permits, count int, timeout time.Duration,
) {
	p.stop()
	if s.supply.Load() == 0 || p.unlimited {
		count = 0
	}
	s.ahead.leaveFor(ctx, count, timeout)
}

type readRequest struct {
	count   uint64
	timeout time.Duration
}

func (r *readRequest) Count() uint64          { return r.count }
func (r *readRequest) TimeOut() time.Duration { return r.timeout }

// maxBetween is how many messages may be between the user's source and the data plane.
const maxBetween = 64

// deliver has messages read and delivered, and returns how many. They are charged to the permits
// that were taken of p; the rest of those go back.
func (s *source) deliver(
	ctx context.Context, request *readRequest, out chan<- sourcer.Message, p *permits,
) (delivered int) {
	in := make(chan sourcer.Message, min(maxBetween, request.count))
	read, keep, again := s.unacknowledged.begin(request.count)
	done := make(chan struct{})
	limited, bytes := p.limited(), int64(0)
	p.unlimited = !limited
	go func() {
		defer close(done)
		for m := range in {
			e := entry{offset: m.Offset()}
			if len(read) < keep {
				e.kept = new(m)
			}
			read = append(read, e)
			select {
			case out <- m:
				delivered++
				if limited {
					bytes += size(m.Value(), m.Keys(), m.Headers())
				}
			case <-ctx.Done(): // out is no longer read
			}
		}
	}()
	defer func() { // also if the user's source panics
		close(in)
		<-done
		p.spend(delivered, bytes)
		s.note(ctx, read)
	}()
	for _, m := range again {
		in <- m
	}
	if len(again) == 0 {
		s.Sourcer.Read(ctx, request, in)
	}
	return // delivered is complete when the deferred function has run
}

// Ack is the user's.
func (s *source) Ack(ctx context.Context, request sourcer.AckRequest) {
	s.unacknowledged.acksOn(ctx)
	s.unacknowledged.settle(request.Offsets())
	s.Sourcer.Ack(ctx, request)
}

// guarded runs the user's code outside of the data plane's calls. If it panics, the next Read
// panics, so that the SDK ends the server as it does for every panic.
func (s *source) guarded(run func()) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("numaflowthrottle: the source has panicked", "topic", s.topic, "panic", p)
			s.panicked.Store(&p)
		}
	}()
	run()
}
