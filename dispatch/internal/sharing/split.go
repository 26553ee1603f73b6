package sharing

import (
	"fmt"
	"math"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// split is the mode that gives each replica the same part of the limit. It allocates nothing: the
// slots of a replica are those of the limit's line whose number, divided by the pool size, leaves
// its rank. All replicas number the slots by the permit store's clock, so that together they are
// the limit, one after the other, even if that is lower than their number. Heartbeats agree on the
// pool size.
type split struct {
	*Share
	lease  pool.Lease
	told   pool.Answer   // the last one
	lot    uint64        // drawn, for a rank where the policy says the pool size
	offset float64       // the store's clock less ours, from the fastest of the recent answers
	line   schedule.Line // of the limit's ramp, as last told
	lower  float64       // the rate in force, if another policy store has a lower one; 0 = it has not
	active bool          // permits were wanted since the last heartbeat
	size   int           // the pool size, and
	rank   int           // our rank, by which slots were last counted
	passed float64       // how many slots of ours there had been by then
	again  float64       // the next heartbeat
	left   bool          // the last heartbeat said that we leave
	waits  bool          // callers wait, or were refused
}

func newSplit(s *Share) *split {
	return &split{
		Share: s,
		lot:   s.env.Rand.Uint64(),
		lease: pool.Lease{
			Replica: fmt.Sprintf("%s/%s/%x", s.env.Replica, s.Limit.Sharer, s.env.Rand.Uint32()),
		},
	}
}

// Advance releases the slots that have come. Those of a pause of over a round, and those that no
// caller wants within one, are lost.
func (s *split) Advance(t Time, d Demand) {
	now := t.Now
	if rate := s.allowed(now); s.rate != rate {
		s.rate, s.size = rate, 0 // numbered again
	}
	s.observe(&s.Bucket, s.Limit.Round, now, d)
	s.waits = d.Waiting > 0 || s.Refusing()
	s.active = s.active || s.used || s.waits
	size, rank := s.place(now)
	if size == 0 {
		s.size = 0
		return
	}
	passed := s.slotsBy(now, size, rank)
	if s.size != size || s.rank != rank {
		s.size, s.rank, s.passed = size, rank, passed
	}
	due := int64(passed - s.passed)
	s.passed = max(s.passed, passed)
	s.share = s.rate / float64(size)
	if due <= 0 {
		return
	}
	room := max(0, max(1, int64(s.share*s.Limit.Round))-s.Available())
	s.lost += max(0, due-room)
	s.noteStart(t.Step)
	s.supply(min(due, room))
}

// allowed is the limit's rate now. A ramp that goes with the time needs no heartbeat for each
// step.
func (s *split) allowed(now float64) float64 {
	ramp := s.Limit.Ramp
	ramp.TTL = 0 // while the store is unavailable, the ramp goes on from where it was
	_, rate := ramp.At(s.line, s.Limit.Rate, !ramp.Relaxed, false, now+s.offset)
	if s.lower > 0 {
		rate = min(rate, s.lower)
	}
	return rate
}

// fixed reports whether the policy says the pool size.
func (s *split) fixed() bool { return s.Limit.Split.PoolSize > 0 }

// place is the pool size and the rank that count now; a size of 0 has nothing. A replica that may
// go on without the store keeps the place that it was told last.
func (s *split) place(now float64) (size, rank int) {
	if n := s.Limit.Split.PoolSize; n > 0 {
		return n, int(s.lot % uint64(n))
	}
	answer := s.lease.At(now).Answer
	if answer.Size == 0 && s.failures > 0 && s.Limit.OnOutage == policy.OutageShare {
		answer = s.told
	}
	return answer.Size, answer.Rank
}

// slotsBy counts the slots of a place in the line, up to now.
func (s *split) slotsBy(now float64, size, rank int) float64 {
	return math.Floor(((now+s.offset)*s.rate - float64(rank)) / float64(size))
}

// due is when the next slot comes.
func (s *split) due() float64 {
	if s.size == 0 {
		return math.Inf(1)
	}
	return ((s.passed+1)*float64(s.size)+float64(s.rank))/s.rate - s.offset
}

// heartbeats reports whether replicas agree on something through the store: the pool size, or the
// line of a ramp.
func (s *split) heartbeats() bool { return !s.fixed() || s.Limit.Ramp.Over > 0 }

// member reports whether the store may count us.
func (s *split) member() bool { return s.lease.Answer != (pool.Answer{}) }

// Next is the heartbeat, when that is due.
func (s *split) Next(now float64, _ Demand) *permits.Request {
	if s.left { // the limit applies again
		s.left, s.again = false, 0
	}
	if s.pending || now < s.again || !s.heartbeats() {
		return nil
	}
	return s.heartbeat(now, false)
}

// Drain leaves the pool, once.
func (s *split) Drain(now float64) *permits.Request {
	if s.pending || s.left {
		return nil
	}
	s.left = true
	if !s.member() {
		return nil
	}
	return s.heartbeat(now, true)
}

func (s *split) heartbeat(now float64, leave bool) *permits.Request {
	s.lease = s.lease.At(now)
	h := &permits.Heartbeat{
		Member: s.lease.Member(), Applied: s.lease.Answer, TTL: s.Limit.Split.TTL,
		Leave: leave, Fixed: s.fixed(),
		Rate: s.Limit.Rate, Ramp: s.Limit.Ramp, Source: s.Limit.Source, Rev: s.Limit.Revision, Active: s.active,
	}
	s.active, s.left = false, leave
	if leave {
		s.lease = s.lease.Left()
	}
	return s.send(now, permits.Request{Heartbeat: h})
}

// Answered takes in the pool size and the line of the ramp.
func (s *split) Answered(r *permits.Request, done, now float64) {
	h := r.Heartbeat
	if !s.noteAnswer(r, done, now) {
		s.again = now + s.crowded(max(h.TTL/20, s.told.Again(h.TTL)), h.TTL/4)
		return
	}
	if h.Leave {
		return
	}
	if !h.Fixed {
		s.lease = s.lease.Renew(h.Member, h.Answer, s.sent, h.TTL)
		s.told = s.lease.Answer
	}
	if offset := h.Now - s.done; offset > s.offset || s.offset-offset > 1 || s.offset == 0 {
		if math.Abs(offset-s.offset) > 0.05 {
			s.size = 0 // the clock has stepped: slots are numbered again
		}
		s.offset = offset
	}
	s.noteRival(h.Rival, now)
	s.line, s.lower = h.Line, h.Lower
	s.again = now + h.Answer.Again(h.TTL)*(0.8+0.2*s.env.Rand.Float64())
	if h.Ramp.Over > 0 {
		s.again = min(s.again, now+1)
	}
}

// WakeAt is when the next heartbeat or slot is due.
func (s *split) WakeAt(float64) float64 {
	at := math.Inf(1)
	if s.heartbeats() && !s.pending && !s.left {
		at = s.again
	}
	if s.waits {
		at = min(at, s.due())
	}
	return at
}

// Covered is false: each caller wants the slot after the last one's.
func (s *split) Covered(float64) bool { return false }

// Keep is false: a replica leaves the pool.
func (s *split) Keep(float64) bool { return false }

// Reopen is false: nothing is kept.
func (s *split) Reopen() bool { return false }

// NextPermit is when the next slot comes.
func (s *split) NextPermit(now float64) float64 { return min(s.due(), now+1) }

// Idle reports whether no replica counts on our heartbeat.
func (s *split) Idle() bool { return !s.pending && (s.left || s.fixed()) }

// Report fills in the share and the pool size.
func (s *split) Report(r *Report) { r.Allowed, r.Share, r.Pool = s.rate, s.share, s.size }
