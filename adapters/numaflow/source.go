package numaflowthrottle

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Source puts lim in front of s: a Read takes permits before it asks s for as many messages, and asks again until it has Count
// of them, s has fewer than it was asked for, or TimeOut is over. What s did not deliver goes back. A nil lim limits nothing.
//
// Permits for the next Read come from the end of the last one, if s had as many messages as it was asked for: at most one batch, and
// as many as the limit allows in that time, the gap. So in any interval d, at most limit x (d + gap) messages are read. They go
// back after two gaps, or TimeOut if that is longer. With strict sharing or maxInFlight, none are acquired between Reads.
//
// The backlog is what s tells as Pending, asked once a second while there is a limit.
//
// When a data plane has died, nobody will acknowledge what it had read: s gets it as a Nack, or it is handed over again
// ([WithRequeue]).
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
	wrapped := &source{Sourcer: s, vertex: v, sent: sent{keep: v.requeue}, born: time.Now()}
	wrapped.ahead.one = false
	wrapped.looked.Store(-int64(lookEvery))
	return wrapped, nil
}

type source struct {
	sourcer.Sourcer // the user's
	*vertex
	sent sent

	had     atomic.Int64 // messages that the user's source had in the largest call of a Read, if it had as many in each as it was asked for; else 0
	born    time.Time
	looked  atomic.Int64 // at the backlog, in nanoseconds since then
	looking sync.Mutex   // of who looks: Pending takes its time

	panicked atomic.Pointer[any] // what the user's source panicked with when it was not the data plane that called
}

// lookEvery is how often the backlog is looked at.
const lookEvery = time.Second

// Read is the user's, with permits. The data plane asks for one Read at a time.
func (s *source) Read(ctx context.Context, request sourcer.ReadRequest, out chan<- sourcer.Message) {
	if p := s.panicked.Swap(nil); p != nil {
		panic(*p)
	}
	begin := time.Now()
	deadline := begin.Add(request.TimeOut())
	s.follow(ctx)
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if request.TimeOut() > lookEvery || begin.Sub(s.born) >= time.Duration(s.looked.Load())+lookEvery {
		go s.watch(waiting)
	}
	p := &permits{source: s, ctx: waiting, left: int(min(request.Count(), math.MaxInt32))}
	s.ahead.enter()
	defer s.prepare(ctx, p, p.left, request.TimeOut())
	most := 0 // messages of one call
	for first := true; ; first = false {
		asked := p.take(int(s.had.Load()))
		if asked == 0 || !first && !time.Now().Before(deadline) {
			return
		}
		got := s.pass(ctx, &readRequest{uint64(asked), max(0, time.Until(deadline))}, out, p)
		if got < asked {
			s.had.Store(0)
			return // there is no more, or TimeOut is over
		}
		most = max(most, got)
		s.had.Store(int64(most))
	}
}

// prepare ends a Read: permits for the next one are acquired until it comes, if the user's source has more messages.
func (s *source) prepare(ctx context.Context, p *permits, count int, timeout time.Duration) {
	p.stop()
	if s.had.Load() == 0 || p.free {
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

// between is how many messages may be between the user's source and the data plane.
const between = 64

// pass has messages read and handed over, and returns how many. They are charged to what was taken of p; the rest goes back.
func (s *source) pass(ctx context.Context, request *readRequest, out chan<- sourcer.Message, p *permits) (got int) {
	in := make(chan sourcer.Message, min(between, request.count))
	all, keep, again := s.sent.begin(request.count)
	passed := make(chan []entry)
	limited, bytes := p.limited(), int64(0)
	p.free = !limited
	go func() {
		for m := range in {
			e := entry{offset: m.Offset()}
			if len(all) < keep {
				e.kept = new(m)
			}
			all = append(all, e)
			select {
			case out <- m:
				got++
				if limited {
					bytes += size(m.Value(), m.Keys(), m.Headers())
				}
			case <-ctx.Done(): // nobody reads any more
			}
		}
		passed <- all
	}()
	defer func() { // also if the user's source panics
		close(in)
		all := <-passed
		p.spend(got, bytes)
		s.note(ctx, all)
	}()
	for _, m := range again {
		in <- m
	}
	if len(again) == 0 {
		s.Sourcer.Read(ctx, request, in)
	}
	return // what is counted meanwhile
}

// Ack is the user's.
func (s *source) Ack(ctx context.Context, request sourcer.AckRequest) {
	s.sent.acksOn(ctx)
	s.sent.settle(request.Offsets())
	s.Sourcer.Ack(ctx, request)
}

// Nack is the user's.
func (s *source) Nack(ctx context.Context, request sourcer.NackRequest) {
	refused := request.Offsets()
	offsets := make([]sourcer.Offset, len(refused))
	for i, r := range refused {
		offsets[i] = r.Offset
	}
	s.sent.settle(offsets)
	s.Sourcer.Nack(ctx, request)
}

// Pending is the user's, and what is to be handed over again.
func (s *source) Pending(ctx context.Context) int64 {
	n := s.Sourcer.Pending(ctx)
	if n >= 0 {
		n += s.sent.waiting()
	}
	return n
}

// watch looks at the backlog when it is time, until the Read is over.
func (s *source) watch(ctx context.Context) {
	for {
		now, last := int64(time.Since(s.born)), s.looked.Load()
		if wait := time.Duration(last + int64(lookEvery) - now); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		} else if s.looked.CompareAndSwap(last, now) {
			s.guarded(s.look)
		}
	}
}

// guarded runs the user's code outside of the data plane's calls. If it panics, the next Read does, so that the SDK ends the
// server as ever.
func (s *source) guarded(run func()) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("numaflowthrottle: the source has panicked", "topic", s.topic, "panic", p)
			s.panicked.Store(&p)
		}
	}()
	run()
}

// look reports the backlog, where there is a limit.
func (s *source) look() {
	if len(s.sub.Stats().Limits) == 0 || !s.looking.TryLock() {
		return
	}
	defer s.looking.Unlock()
	s.sub.ReportBacklog(s.Pending(context.Background()))
}
