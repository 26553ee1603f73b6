package sharing

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A store is a permit store of one limit, in the time of a test.
type store struct {
	state    schedule.State
	subs     map[string]schedule.Sub
	record   []byte
	ahead    float64 // its clock minus the world's
	down     bool
	requests []permits.Request // all so far, without their answers
}

func (s *store) do(r *permits.Request, now float64) {
	asked := *r
	if r.Allocate != nil {
		a := *r.Allocate
		asked.Allocate = &a
	}
	s.requests = append(s.requests, asked)
	r.Err = nil
	if s.down {
		r.Err = errors.New("down")
		return
	}
	now += s.ahead
	if a := r.Allocate; a != nil {
		a.Sole = true
		var sub schedule.Sub
		s.state, sub, a.Reply = schedule.Allocate(s.state, s.subs[a.Subscription], a.Request, now)
		s.subs[a.Subscription] = sub
		return
	}
	for _, record := range permits.PoolRecords([]*permits.Request{r}) {
		s.record = record.Apply(s.record, now)
	}
}

// last is the last request.
func (s *store) last() permits.Request { return s.requests[len(s.requests)-1] }

// A world is the replicas of one limit and its permit store, in virtual time.
type world struct {
	store
	now     float64
	clients []*client
}

func newWorld() *world { return &world{now: 1, store: store{subs: map[string]schedule.Sub{}}} }

// A client steps its share as the engine's loop does, and takes permits.
type client struct {
	*Share
	Sharing // the share's mode
	w       *world
	callers int  // that wait, and come back as soon as they are served
	once    int  // that wait for one permit
	closing bool // the limit no longer applies
	rtt     float64
	behind  float64 // how long it has stood still: its clock is that far behind the world's

	got      []float64        // when each permit was taken
	asked    *permits.Request // that is on its way
	answerAt float64
	due      float64
	step     uint64
}

// tick is the shortest time between two steps.
const tick = 1e-3

func (w *world) join(limit resolve.Limit) *client {
	env := &Env{
		Replica: "r", Process: "p", Rand: rand.New(rand.NewPCG(uint64(len(w.clients)), 1)),
		Timeout: constant(0),
	}
	s := New(env, limit, w.now)
	c := &client{Share: s, Sharing: s.Mode, w: w, due: w.now, answerAt: math.Inf(1)}
	w.clients = append(w.clients, c)
	return c
}

// far makes requests take rtt seconds.
func (c *client) far(rtt float64) {
	c.rtt, c.env.Timeout = rtt, constant(0.3)
}

// touch makes the client step now.
func (c *client) touch() { c.due = min(c.due, c.w.now-c.behind) }

// run lets seconds go by.
func (w *world) run(seconds float64) { w.until(w.now + seconds) }

func (w *world) until(end float64) {
	for {
		next, at := (*client)(nil), end
		for _, c := range w.clients {
			if due := min(c.due, c.answerAt) + c.behind; due < at {
				next, at = c, due
			}
		}
		w.now = max(w.now, at)
		if next == nil {
			return
		}
		next.move()
	}
}

// move takes an answer in, and steps.
func (c *client) move() {
	now := max(c.w.now-c.behind, min(c.due, c.answerAt)) // which rounding may leave behind
	if c.answerAt <= now {
		r := c.asked
		c.asked, c.answerAt = nil, math.Inf(1)
		c.Answered(r, now, now)
	}
	for range 3 { // the store may answer at once
		c.step++
		c.Advance(Time{Now: now, Step: c.step, Late: now - c.due}, c.demand())
		c.take()
		r := c.next()
		c.due = max(c.WakeAt(now), now+tick)
		if r == nil {
			return
		}
		if c.rtt > 0 {
			c.w.do(r, c.w.now+c.rtt/2)
			c.asked, c.answerAt = r, now+c.rtt
			return
		}
		c.w.do(r, c.w.now)
		c.Answered(r, now, now)
	}
}

func (c *client) next() *permits.Request {
	if c.closing {
		return c.Drain(c.w.now - c.behind)
	}
	return c.Next(c.w.now-c.behind, c.demand())
}

func (c *client) demand() Demand {
	callers := c.callers + c.once
	d := Demand{Anybody: callers > 0, Callers: callers}
	if c.Empty() {
		d.Waiting = float64(callers)
	}
	return d
}

func (c *client) take() {
	for c.callers+c.once > 0 && c.Take(1) == 1 {
		c.got = append(c.got, c.w.now)
		c.once = max(0, c.once-1)
	}
}

// between counts the permits taken from a time on, and before another.
func (c *client) between(from, to float64) (n int) {
	for _, at := range c.got {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

// most is the largest number of permits that all clients together took in any interval that long.
func (w *world) most(seconds float64) (most int) {
	var all []float64
	for _, c := range w.clients {
		all = append(all, c.got...)
	}
	slices.Sort(all)
	first := 0
	for i, at := range all {
		for at-all[first] >= seconds {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// limited is a limit of a mode, of rate permits a second.
func limited(mode policy.SharingMode, rate float64) resolve.Limit {
	return resolve.Limit{
		Key: "throttle:limit:{c/t}:messages", Sharer: "s", Weight: 1, OnOutage: policy.OutageShare,
		Pace:     resolve.Pace{Mode: mode, Rate: rate, Round: 0.1},
		Revision: schedule.Revision{Number: 1},
	}
}

// at returns the limit at another rate, one revision later.
func at(l resolve.Limit, rate float64) resolve.Limit {
	l.Rate = rate
	l.Revision.Number++
	return l
}

// constant returns a time-out that does not change.
func constant(seconds float64) func() float64 { return func() float64 { return seconds } }

// receive adds a batch of n permits.
func (b *Bucket) receive(n int64, due, gap, requested, life, round float64) {
	b.add(batch{n: n, due: due, gap: gap, requested: requested, life: life}, round)
}

// see takes in what callers did.
func (s *Share) see(now float64, d Demand) { s.observe(&s.Bucket, s.Limit.Round, now, d) }

// wanting is what this replica wants.
func (s *Share) wanting(d Demand) float64 { return s.wants(&s.Bucket, s.Limit.Round, d) }
