package dispatch

// A Grant is the permits that an Acquire came back with. They are charged already, so
// to forget a Grant is safe: it only keeps what was not used. But where maxInFlight is set, its messages are in flight
// until Done. The zero value is a Grant of nothing.
type Grant struct {
	n     int
	plan  *plan  // nil: nothing is limited, or it is settled
	size  int64  // bytes charged, in all; 0 = there is no limit of bytes, nor of messages in flight
	taken uint64 // at this step of the loop; with onHold, until when it can be given back: see Hold
}

// N is how many messages may be dispatched.
func (g Grant) N() int { return max(0, g.n) } // an unlimited grant takes over what was asked for

// Limited reports whether the permits are some limit's, so that Done counts.
func (g Grant) Limited() bool { return g.plan != nil }

// InFlight reports whether the messages of the Grant count as in flight until Done, since maxInFlight is set.
func (g Grant) InFlight() bool { return g.plan != nil && g.plan.inFlight > 0 }

// Done settles the Grant: messages is how many were dispatched, bytes their size in all. What was not
// used goes back, unless it is older than two batches of a limit and would come too late for that ([Grant.Hold] allows
// more); more than granted becomes a debt that later reads pay. Only the first call counts. Done must be called on the
// Grant itself, not on a copy.
func (g *Grant) Done(messages int, bytes int64) {
	if g.plan != nil && (messages != g.n || g.size != 0) { // inlined: without a limit of bytes, it costs no call
		g.settle(messages, bytes)
	}
	g.plan = nil
}

// waste gives up the slot of a strict limit, and gives back the rest.
func (g *Grant) waste() {
	g.plan.slots.wasted.Add(int64(g.n))
	g.undo()
}

// undo gives back what there is of limits that are not strict.
func (g *Grant) undo() {
	for _, a := range g.plan.messages {
		if a != g.plan.paced {
			a.giveBack(int64(g.n))
		}
	}
	for _, a := range g.plan.bytes {
		a.giveBack(g.size)
	}
	if g.plan.inFlight > 0 {
		g.plan.queue.family.turnBack(int64(g.n))
	}
	g.plan = nil
}

// spent is Done for all that was granted, its bytes being what was charged.
func (g *Grant) spent() { g.Done(g.n, g.size) }

func (g *Grant) settle(messages int, bytes int64) {
	p := g.plan
	messages, bytes = min(messages, most), min(bytes, most)
	held, step := g.held(), g.taken
	if step&onHold != 0 {
		step = 0 // long ago
	}
	if unused := int64(g.n) - int64(max(0, messages)); unused != 0 {
		for _, a := range p.messages {
			switch {
			case unused > 0 && a == p.paced: // its slot is over
				p.slots.wasted.Add(unused)
			case unused < 0 || held || a.fresh(step):
				a.giveBack(unused)
			}
		}
	}
	if len(p.bytes) > 0 {
		unused := g.size - max(0, bytes)
		for _, a := range p.bytes {
			if unused <= 0 || held || a.fresh(step) {
				a.giveBack(unused)
			} else {
				a.forgive(unused)
			}
		}
		if messages > 0 {
			p.queue.learnSize(messages, max(0, bytes))
		}
	}
	if held {
		for _, a := range p.all() {
			a.heldBack.Store(true)
		}
		p.queue.activate() // the loop may be idle
	}
	if p.inFlight > 0 {
		p.queue.family.land(p.queue, int64(g.n), p.inFlight)
	}
	if p.queue.waiters.Load() > 0 {
		p.queue.activate()
	}
}
