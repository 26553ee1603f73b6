package sharing

import "slices"

// turns are the strict shares of one limit in this process whose callers wait. A slot that is due
// goes to the subscription that was served longest ago, whichever share requested it: one with many
// callers requests most of the slots, and would keep a caller of another from ever getting one.
type turns struct {
	waiting []*strict
	served  map[string]float64 // by subscription: when a caller of it last got a slot
}

// needsSlot reports whether a caller could use a slot now, and none is released. A share in
// turns.waiting need not: it may have its slot, or lack the permit of another limit.
func (s *strict) needsSlot() bool { return s.wanted() > 0 && s.Empty() && !s.demand.Lacks }

// note notes what callers want, and puts the share among those whose callers wait, or takes it
// out.
func (s *strict) note(now float64, d Demand) {
	s.demand = d
	wait, t := s.wanted() > 0, s.env.turns[s.Limit.Key]
	switch {
	case wait == (s.waitsSince > 0):
	case wait:
		if t == nil {
			t = new(turns)
			s.env.turns[s.Limit.Key] = t
		}
		s.waitsSince = now
		t.waiting = append(t.waiting, s)
	default:
		s.waitsSince = 0
		i := slices.Index(t.waiting, s)
		if t.waiting = slices.Delete(t.waiting, i, i+1); len(t.waiting) == 0 {
			delete(s.env.turns, s.Limit.Key)
		}
	}
}

// nextInTurn returns the first, by turns, of the other shares that wait and can use a slot of s;
// nil = there is none. While callers of s wait, it is no share of the same subscription, so that
// the owner of a message does not decide when its caller is served.
func (s *strict) nextInTurn() (first *strict) {
	t := s.env.turns[s.Limit.Key]
	if t == nil || s.env.Closing {
		return nil
	}
	for _, other := range t.waiting {
		if other == s || !other.needsSlot() || !other.canUse(s) ||
			s.demand.Anybody && other.Limit.Sharer == s.Limit.Sharer {
			continue
		}
		if first == nil || t.before(other, first) {
			first = other
		}
	}
	return first
}

// nextServed returns the share whose caller gets the slot of s that is due.
func (s *strict) nextServed() *strict {
	other := s.nextInTurn()
	if other == nil || (s.needsSlot() || s.demand.Try) && s.env.turns[s.Limit.Key].before(s, other) {
		return s
	}
	return other
}

// canUse reports whether a slot of another share is one of this share's schedule and pace, too: a
// closed share hears of no change of its limit.
func (s *strict) canUse(other *strict) bool {
	return s.inc == other.inc && s.paceRate == other.paceRate && s.paceRamp == other.paceRamp
}

// before reports whether a is served before b: its subscription was served longer ago or, of one
// subscription, the share was.
func (t *turns) before(a, b *strict) bool {
	if a.Limit.Sharer == b.Limit.Sharer {
		return a.waitsSince < b.waitsSince
	}
	return t.since(a) < t.since(b)
}

// since is when a share's subscription is taken to have had its last turn. If that is unknown, it
// is a turn of all before it began to wait: a newcomer is served soon, but ever new ones do not
// keep the others from their turns.
func (t *turns) since(s *strict) float64 {
	if at := t.served[s.Limit.Sharer]; at > 0 {
		return at
	}
	return s.waitsSince - float64(len(t.waiting))/s.paceRate
}

// served notes that a slot of s is released.
func (s *strict) served(now float64) {
	t := s.env.turns[s.Limit.Key]
	if t == nil {
		return
	}
	if len(t.served) > 2*len(t.waiting)+16 { // most of them do not wait any more
		clear(t.served)
	}
	if t.served == nil {
		t.served = map[string]float64{}
	}
	t.served[s.Limit.Sharer] = now
	if s.waitsSince > 0 {
		s.waitsSince = now
	}
}

// passSlot gives the slot of s that is due to another share, in exchange for its first one to come
// if callers of s wait.
func (s *strict) passSlot(to *strict) {
	slot := s.batches[0]
	s.batches = s.batches[1:]
	if len(to.batches) > 0 && to.batches[0].state == released { // taken
		to.batches = to.batches[1:]
	}
	if len(to.batches) > 0 && s.needsSlot() {
		s.insert(to.batches[0], to)
		to.batches = to.batches[1:]
	}
	to.insert(slot, s)
}

// handSurplus reports whether another share waits, so that n slots too many stay in this process.
// They go to it now if it has fewer than it wants; else Advance passes each on when it is due.
func (s *strict) handSurplus(n int64, now float64) bool {
	other := s.nextInTurn()
	if other != nil && other.Unspent() < other.wanted() {
		s.handTo(other, now, n)
	}
	return other != nil
}

// handTo gives the last n slots to another share, but for those that are released.
func (s *strict) handTo(other *strict, now float64, n int64) {
	for ; n > 0 && len(s.batches) > 0 && s.batches[len(s.batches)-1].state == toCome; n-- {
		other.insert(s.batches[len(s.batches)-1], s)
		s.batches = s.batches[:len(s.batches)-1]
	}
	s.newestToStore = false
	s.env.Serve(other.Share, now)
}

// insert adds a slot of another share, in the order of their times.
func (s *strict) insert(slot batch, from *strict) {
	at := slices.IndexFunc(s.batches, func(own batch) bool { return own.due > slot.due })
	if at < 0 {
		at, s.newestToStore = len(s.batches), false // the newest is not the one of the last reply
	}
	s.batches = slices.Insert(s.batches, at, slot)
	s.rate = from.rate
	s.confirmedAt = max(s.confirmedAt, from.confirmedAt)
}
