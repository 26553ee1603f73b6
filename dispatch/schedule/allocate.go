package schedule

// An allocation is one call of Allocate, which brings a state from what was stored to what is kept,
// step by step. The twin in Lua has the same steps under the same names.
type allocation struct {
	State
	sub Sub
	r   Request
	now float64

	// Of restore and incarnate.
	known    bool // there was a sound state before this request
	lost     bool // there was one that was not sound
	old      bool // an old state has come back, which is as good as lost
	replaces bool // the state replaces one that other replicas know, too

	// Of arbitrate.
	before float64 // clock at the request before
	asked  string  // the policy store of the replica
	takes  bool    // the policies of another store are in force from now on

	// Of revise and slow.
	newer     bool    // the request's policies are newer
	otherPace bool    // the slots that are allocated get another pace
	was       float64 // the rate before
	allocated float64 // permits ahead, at that rate

	// Of meet.
	stranger bool // the replica knows another state, or none
	foreign  bool // it knows another one
}

// Allocate allocates the permits that r requests, at the store's time now, and returns the new
// states and the reply.
//
// The rate and the ramp of the newest revision are in force; of two policy stores, those of the
// lower rate: see Arbitrate. Of two rates of one revision the lower one is: policies of a revision
// have one rate, so that a higher one in the state is damage, or was found by another replica at
// the same time (quotas).
//
// Each product that is added to another number is converted to float64, which keeps compilers from
// fusing the two operations: the twin in Lua rounds each of them.
func Allocate(s State, sub Sub, r Request, now float64) (State, Sub, Reply) {
	if r.NotAfter > 0 && now > r.NotAfter {
		return s, sub, Reply{Late: true, Now: now}
	}
	a := allocation{State: s, sub: sub, r: r, now: now}
	a.restore()
	a.incarnate()
	a.follow()
	a.resume()
	a.arbitrate()
	a.revise()
	var reply Reply
	if r.Strict {
		a.shorten()
		a.paceStrict()
		a.meetStrict()
		reply = a.reserve()
	} else {
		a.slow()
		a.shorten()
		a.paceShared()
		a.meetShared()
		a.roll()
		a.giveBack()
		reply = a.allot()
	}
	reply.Lost, reply.Now, reply.Rate = a.lost, now, a.Rate
	reply.Ahead, reply.Since, reply.Carry.Shifts = a.Step.Ahead, now-a.Resumed, a.Shifts
	reply.Rival = RivalOf(a.asked, a.Source, a.State.Rival.Source)
	return a.State, a.sub, reply
}

// restore makes a new state if there is none, or none that is sound.
func (a *allocation) restore() {
	r, now := &a.r, a.now
	a.lost = a.Inc != 0 && !a.sound(now, r.Rev)
	a.known = a.Inc != 0 && !a.lost
	if !a.known {
		a.State = State{
			Inc: r.Nonce, Last: now, Checked: now, Resumed: now, Tail: now, Epoch: firstEpoch,
			Start: now, Source: r.Source, Rev: r.Rev, Rate: r.Rate, Top: r.Rate, Ramp: r.Ramp,
		}
	}
	if !a.known || !a.sub.sound() {
		a.sub = Sub{}
	}
	a.old = a.known && r.Carry.Inc == a.Inc && r.Carry.Seq > a.Seq
	if r.Strict && a.known {
		a.old = a.old || a.Server != r.Server // a failover, or a restart
	}
}

// incarnate gives a state that replaces another one an incarnation of its own.
func (a *allocation) incarnate() {
	r := &a.r
	if a.old {
		a.Inc, a.Shifts = r.Nonce, 0
	}
	a.replaces = r.Carry.Inc != 0 && (!a.known || a.old)
	if a.replaces {
		a.Inc = successor(r.Carry.Inc, r.Nonce)
	}
	if r.Strict {
		a.Server = r.Server
	}
}

// lineage is how many incarnations a successor tells apart, and nonces how many nonces.
const lineage, nonces = 1 << 20, 1 << 32

// successor is the incarnation of a state that replaces one that is lost. The incarnation of that
// one is in it, but for a part, so that the state knows replicas that were in the lost one: it was
// made with room for the slots that they hold, as far as the first of them knew.
func successor(lost, nonce int64) int64 { return lost%lineage*nonces + nonce%nonces }

// replaced reports whether the state has replaced the one with that incarnation.
func (s *State) replaced(inc int64) bool { return inc > 0 && s.Inc/nonces == inc%lineage }

// resume notes when the first request after a silence came.
func (a *allocation) resume() {
	if a.now-a.Last > silence || a.Resumed > a.now {
		a.Resumed = a.now
	}
	a.before, a.Last = a.Last, a.now
}

// revise puts the rate and the ramp of the request's policies in force, if they are newer, or lower
// than others of the same revision.
func (a *allocation) revise() {
	r, now := &a.r, a.now
	a.newer = a.takes || a.Rev.Before(r.Rev)
	lower := !a.takes && a.Rev == r.Rev && r.Rate < a.Top
	// Else only the revision is newer, or the slots stay: a damaged rate does not say how many they
	// are.
	a.otherPace = a.newer && (r.Rate != a.Top || r.Ramp != a.Ramp) || lower && r.Strict
	a.was = a.Rate
	if a.newer || lower {
		a.allocated = a.slope(now, now).count(a.Tail - now)
		a.Rev, a.Top, a.Ramp, a.Rate = r.Rev, r.Rate, r.Ramp, r.Rate
	}
	if a.Ramp.Over <= 0 {
		a.Line = Line{}
	} else if r.Ramp.Over > 0 { // a replica that does not know of the ramp does not move it
		a.Line, a.Rate = a.Ramp.At(a.Line, a.Top, r.Want > 0, a.Tail > now, now)
	}
}

// shorten shortens the time that replicas need for one permit, if the rate has risen.
func (a *allocation) shorten() {
	if a.Rate > a.was {
		a.This.Need, a.Prev.Need = a.This.Need*a.was/a.Rate, a.Prev.Need*a.was/a.Rate
	}
}

// strange reports whether the replica knows another state, or none.
func (a *allocation) strange() bool {
	a.stranger = a.r.Carry.Inc != a.Inc
	a.foreign = a.stranger && a.r.Carry.Inc != 0
	return a.stranger
}

// forget forgets what a stranger has of another state.
func (a *allocation) forget() { a.r.Returned, a.r.Carry = 0, Carry{} }
