package dispatch

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A split account allocates nothing: its slots are those of the limit's line whose number, divided by the size of the pool,
// leaves its rank. All replicas number the slots by the permit store's clock, so that theirs add up to the limit, one after the
// other, even where that is lower than their number. How many they are, they agree on through the permit store.
type split struct {
	lease  pool.Lease
	told   pool.Answer   // the last one
	lot    uint64        // drawn, for a rank where nobody gives one
	fixed  int64         // head count of the policy; 0 = agreed on
	ttl    float64       // seconds
	offset float64       // the permit store's clock less ours, from the fastest answer of late
	line   schedule.Line // of the limit's ramp, as last told
	asked  bool          // somebody has since
	size   int           // of the pool, and our rank in it, by which slots were last counted
	rank   int
	passed float64 // how many of our slots there had been by then
	again  float64 // the next call
	busy   bool    // a call is under way
	closed bool    // has said goodbye
}

// advanceSplit releases the slots that have come. Those of a pause of over a round, and those that nobody wants within
// one, are lost.
func (a *account) advanceSplit(step uint64, now float64, w demand) {
	s := a.split
	if rate := a.rateOfSplit(now); a.rate != rate {
		a.rate, s.size = rate, 0 // numbered anew
	}
	a.rev = a.limit.rev
	a.observe(now, w)
	s.asked = s.asked || a.fruitful || w.waiting > 0
	size, rank := s.place(now, a.failures > 0 && a.loss == policy.OutageShare)
	if size == 0 {
		s.size = 0
		return
	}
	passed := s.slotsBy(now, a.rate, size, rank)
	if s.size != size || s.rank != rank {
		s.size, s.rank, s.passed = size, rank, passed
	}
	due := int64(passed - s.passed)
	s.passed = max(s.passed, passed)
	if due <= 0 {
		return
	}
	most := max(1, int64(a.rate/float64(size)*a.limit.round))
	room := max(0, most-a.ready())
	a.lapsed += max(0, due-room)
	a.begin(step)
	a.supply(min(due, room))
	a.share = a.rate / float64(size)
}

// rateOfSplit is the limit's rate at this time. A ramp that goes with the time needs no word of the permit store for each step.
func (a *account) rateOfSplit(now float64) float64 {
	ramp, clock := a.limit.ramp, now+a.split.offset
	ramp.TTL = 0 // while the permit store is away, it goes on from where it was
	_, rate := ramp.At(a.split.line, a.limit.rate, !ramp.Relaxed, false, clock)
	return rate
}

// meets says that the account has something to agree on through the permit store.
func (a *account) meets() bool { return a.split.fixed == 0 || a.limit.ramp.Over > 0 }

// place is the size of the pool and the rank in it that count now; a size of 0 has nothing. Who is to go on without a
// permit store keeps the place that he was told last.
func (s *split) place(now float64, goOn bool) (size, rank int) {
	if s.fixed > 0 {
		return int(s.fixed), int(s.lot % uint64(s.fixed))
	}
	answer := s.lease.At(now).Answer
	if answer.Size == 0 && goOn {
		answer = s.told
	}
	return answer.Size, answer.Rank
}

// slotsBy counts the slots of a place in the line, up to now.
func (s *split) slotsBy(now, rate float64, size, rank int) float64 {
	return math.Floor(((now+s.offset)*rate - float64(rank)) / float64(size))
}

// due is when the next slot comes.
func (s *split) due(rate float64) float64 {
	if s.size == 0 {
		return math.Inf(1)
	}
	return ((s.passed+1)*float64(s.size)+float64(s.rank))/rate - s.offset
}

// split has an account split its limit, or no more. The caller holds l.mu.
func (q *queue) split(a *account, p policy.Policy) {
	l := q.limiter
	if !p.IsSplit() {
		if a.split != nil {
			q.tend(a, l.clock(time.Now()), true)
			a.split = nil
			a.restart()
		}
		return
	}
	if a.split == nil {
		a.restart()
		a.split = &split{lease: pool.Lease{Replica: fmt.Sprintf("%s/%s/%x", l.cfg.Replica, a.subscription, l.cfg.Rand.Uint32())}, lot: l.cfg.Rand.Uint64()}
	}
	a.split.fixed, a.split.ttl = p.HeadCount(), p.PoolTTLDuration().Seconds()
}

// tend meets the pool when that is due; one that is gone says goodbye, once. The caller holds l.mu.
func (q *queue) tend(a *account, now float64, gone bool) {
	s := a.split
	switch {
	case s.fixed > 0 && s.lease.Answer == (pool.Answer{}) && (gone || !a.meets()), s.closed:
	case gone && s.lease.Answer == (pool.Answer{}):
		s.closed = !s.busy // else when the answer is there
	case gone && !s.busy:
		s.closed = true
		q.meet(a, now)
	case !gone && !s.busy && now >= s.again && a.meets():
		q.meet(a, now)
	}
}

// idle says that the account needs no step until somebody calls: nobody counts on its heart.
func (s *split) idle() bool { return !s.busy && (s.closed || s.fixed > 0) }

// wakeSplit is when the account wants its next step.
func (a *account) wakeSplit(w demand) float64 {
	s := a.split
	at := math.Inf(1)
	if a.meets() && !s.busy && !s.closed {
		at = s.again
	}
	if w.waiting > 0 {
		at = min(at, s.due(a.rate))
	}
	return at
}

// meet says hello to the pool, or goodbye, in the background.
func (q *queue) meet(a *account, now float64) {
	l, s := q.limiter, a.split
	s.lease = s.lease.At(now)
	h := &permits.Heartbeat{
		Member: s.lease.Member(), Applied: s.lease.Answer, TTL: s.ttl, Leave: s.closed, Fixed: s.fixed > 0,
		Rate: a.limit.rate, Ramp: a.limit.ramp, Active: s.asked,
	}
	r := &permits.Request{Key: a.limit.key, Heartbeat: h}
	s.busy, s.asked, a.fruitful = true, false, false
	if h.Leave {
		s.lease = s.lease.Left()
	}
	l.done.Go(func() {
		sent := time.Now()
		l.cfg.Permits.Do(context.Background(), []*permits.Request{r})
		l.damaged(r)
		err := r.Err
		l.mu.Lock()
		defer l.mu.Unlock()
		defer q.activate()
		done := l.clock(time.Now())
		s.busy = false
		if err != nil {
			a.failed(done)
			s.again = done + h.TTL/20*(0.5+l.cfg.Rand.Float64())
		} else {
			a.failures = 0
			a.lost.Store(false)
		}
		l.count(a, err, false, done)
		if err == nil && !h.Leave {
			if !h.Fixed {
				s.lease = s.lease.Renew(h.Member, h.Answer, l.clock(sent), h.TTL)
				s.told = s.lease.Answer
			}
			if offset := h.Now - done; offset > s.offset || s.offset-offset > 1 || s.offset == 0 {
				if math.Abs(offset-s.offset) > 0.05 {
					s.size = 0 // the clock has stepped: slots are numbered anew
				}
				s.offset = offset
			}
			s.line = h.Line
			if s.again = done + h.Answer.Again(h.TTL); h.Ramp.Over > 0 {
				s.again = min(s.again, done+1)
			}
		}
	})
}
