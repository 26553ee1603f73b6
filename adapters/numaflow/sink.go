package numaflowthrottle

import (
	"context"
	"sync"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sinker"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Sink puts lim in front of s. A batch is handed to s in slices, in its order, when their permits are there: each is what permits
// came for while the one before was handled, or in 50 ms. So s is called several times for a batch, and every datum is
// answered. Where nothing is limited, s gets the batch as it comes. A nil lim limits nothing.
//
// A datum that the data plane sends again is not charged again, unless s has refused it with a Nack, as by [Busy]: the last
// 10,000 ids that were charged are remembered.
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
func (s *sink) Sink(ctx context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
	if s.free() {
		return s.inner.Sink(ctx, in)
	}
	refused, err := sliced(in, s.sub.Paced(),
		func(d sinker.Datum) (grant dispatch.Grant, err error) {
			if s.charged.has(d.ID()) {
				return grant, nil
			}
			return s.admit(ctx, sinkSize(d), d.Headers())
		},
		func(slice []permitted[sinker.Datum]) {
			handled, nacked := false, map[string]bool{}
			defer func() { // s may panic
				for i := range slice {
					if handled {
						slice[i].grant.Done(1, sinkSize(slice[i].datum))
						s.charged.set(slice[i].datum.ID(), !nacked[slice[i].datum.ID()])
					} else {
						slice[i].grant.Done(0, 0)
					}
				}
			}()
			answers := s.inner.Sink(ctx, channel(slice))
			for _, a := range answers {
				if a.Nack {
					nacked[a.ID] = true
				}
			}
			responses = append(responses, answers...)
			handled = true
		})
	if err != nil {
		s.complain(err)
	}
	for _, d := range refused {
		responses = append(responses, sinker.ResponseNack(d.ID(), nack(err)))
	}
	return responses
}

func sinkSize(d sinker.Datum) int64 { return size(d.Value(), d.Keys(), d.Headers()) }

// Busy answers a datum for which a protected system was busy, as by an HTTP 429: the data plane sends it again after that time,
// and meanwhile goes on.
func Busy(id string, retryAfter time.Duration) sinker.Response {
	return sinker.ResponseNack(id, &sinker.NackOptions{Delay: new(uint64(max(0, retryAfter.Milliseconds()))), Reason: new("busy")})
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
