package numaflowthrottle

import (
	"context"
	"fmt"
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
	return &source{Sourcer: s, vertex: v, sent: sent{keep: v.requeue}}, nil
}

type source struct {
	sourcer.Sourcer // the user's
	*vertex
	sent sent

	served  atomic.Bool  // the last time, the user's source had as many as it was asked for
	looked  atomic.Int64 // at the backlog, in nanoseconds since 1970
	looking sync.Mutex   // of who looks: Pending takes its time
	advised string       // the last time
}

// lookEvery is how often the backlog is looked at.
const lookEvery = time.Second

// Read is the user's, with permits. The data plane asks for one Read at a time.
func (s *source) Read(ctx context.Context, request sourcer.ReadRequest, out chan<- sourcer.Message) {
	begin := time.Now()
	deadline := begin.Add(request.TimeOut())
	s.follow(ctx)
	if last := s.looked.Load(); begin.UnixNano()-last >= int64(lookEvery) && s.looked.CompareAndSwap(last, begin.UnixNano()) {
		go s.look(request)
	}
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	p := &permits{source: s, ctx: waiting, left: int(min(request.Count(), math.MaxInt32))}
	defer p.stop()
	for first := true; ; first = false {
		asked := p.take(s.served.Load() && s.sub.Limited())
		if asked == 0 || !first && !time.Now().Before(deadline) {
			return
		}
		got := s.pass(ctx, &readRequest{uint64(asked), max(0, time.Until(deadline))}, out, p)
		s.served.Store(got >= asked)
		if got < asked {
			return // there is no more, or TimeOut is over
		}
	}
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
	passed := make(chan []entry)
	limited, bytes := s.sub.Limited(), int64(0)
	go func() {
		all := s.sent.room()
		for m := range in {
			all = append(all, s.sent.entryOf(m))
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
	if !s.sent.read(request.count, in) {
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

// look reports the backlog, and says if batches cannot be filled in time, where there is a limit.
func (s *source) look(request sourcer.ReadRequest) {
	stats := s.sub.Stats()
	if len(stats.Limits) == 0 || !s.looking.TryLock() {
		return
	}
	defer s.looking.Unlock()
	if a := advice(stats.MessageRate(assumedSize), request); a != s.advised {
		s.advised = a
		if a != "" {
			s.log.Warn("numaflowthrottle: "+a, "topic", s.topic)
		}
	}
	s.sub.ReportBacklog(s.Pending(context.Background()))
}

// assumedSize is that of a message, in bytes, where only bytes are limited.
const assumedSize = 1024

// advice says what is wrong with batches that cannot be filled within TimeOut: each message waits for that.
func advice(rate float64, request sourcer.ReadRequest) string {
	filled := rate * request.TimeOut().Seconds()
	if filled >= float64(request.Count()) {
		return ""
	}
	return fmt.Sprintf("a batch of %d messages does not come within a readTimeout of %v at %.4g messages a second, "+
		"so that each message waits for the readTimeout: set readBatchSize to %d, or lower for several replicas",
		request.Count(), request.TimeOut(), rate, max(1, int64(filled)))
}
