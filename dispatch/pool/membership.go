package pool

import "slices"

// The parts of a ttl that the argument at [Heartbeat] rests on.
const (
	leasePart = 0.5  // a replica spends for this long after it sent its last answered heartbeat
	stepPart  = 0.25 // what one heartbeat may add to the pool's clock: the store's may jump
)

// A State is the membership of one pool, which a permit store keeps under one key. The zero value
// is a pool without members.
type State struct {
	Term    int64    `json:"term"`              // when Size changed: microseconds on the store's clock
	Size    int      `json:"size"`              // of the pool
	Clock   float64  `json:"clock"`             // the store's clock without its jumps, seconds
	Last    float64  `json:"last"`              // the store's clock at the last heartbeat
	Open    float64  `json:"open"`              // on Clock: when new members may start; see Floor
	Floor   int      `json:"floor,omitempty"`   // the size that members of a lost state report
	Members []Member `json:"members,omitempty"` // in the order they joined, which is their rank
}

// A Member is one replica as the pool knows it.
type Member struct {
	Name   string  `json:"name"`
	Until  float64 `json:"until"`            // on the pool's clock: the last heartbeat + ttl
	Joined int64   `json:"joined,omitempty"` // the term it joined in; 0 = it may spend
	Term   int64   `json:"term"`             // the newest term that it reported as applied
	Active int     `json:"active"`           // the size that it reported with Term
	Told   []int64 `json:"told,omitempty"`   // terms that it was told after Term
}

// An Answer is what a member is told, and what it reports back, once applied, with its next
// heartbeat. The zero value reports that it has applied nothing.
type Answer struct {
	Term   int64 // names the size
	Active int   // members of the pool, never fewer than may be spending
	Size   int   // the divisor to use now, >= Active; 0 = spend nothing yet
	Rank   int   // this member's, 0..Active-1; stable while no member before it leaves
	Agreed bool  // all members have applied Term, and Size is Active: no permit is lost
}

// Again returns how long to wait before the next heartbeat, in seconds: ttl/20, and ttl/40 until
// all agree, so that a pool is whole again some ttl/10 after a member left. In a large pool it is
// [Spacing], but ttl/6 at most. Longer is as safe but slower; a lease lasts ttl/2, and heartbeats
// further apart than ttl/4 slow the pool's clock.
func (a Answer) Again(ttl float64) float64 {
	again := ttl / 40
	if a.Agreed {
		again = ttl / 20
	}
	return max(again, min(Spacing(a.Active), ttl/6))
}

// Heartbeat is one member's heartbeat: it reports the answer that the member has applied, and
// returns the next. ttl, in seconds, is positive and the same for all members; a member that has
// been silent for that long is removed. now is the store's clock. [Lease] is the member's side.
//
// The members agree when all have applied the present term, that is, when all report one size and
// it is the number of members. Until then the divisor is the larger of that number and the largest
// reported size (the rule of Numaflow's distributed throttling). A new member uses no permits
// until all who joined before it have applied a term that counts it. This takes two heartbeats of
// each as a rule, and 2 ttl and a heartbeat at most, whatever the others do. The first members of
// a pool wait one ttl; so does every new member after the store has lost a state.
//
// The inverses of the divisors never add up to more than 1, whatever is lost, late or doubled:
//
//   - A divisor that is told in a term is at least the size of the term, and a member that has
//     applied a term uses no older one. So when the last of those who now use permits was
//     admitted, the others used divisors that count it, and all later terms count all of them.
//   - A reported term only grows. A late or doubled heartbeat brings an old one and changes
//     nothing.
//   - A member holds a divisor for ttl/2 from the sending of the heartbeat, and then gives it up,
//     with the name (Lease). The pool counts the member for a ttl from the arrival of the
//     heartbeat.
//   - A term is a time, so it is never told twice. A term that this state has not told its member
//     shows that the store lost a newer state. For a ttl from then, and from an empty state on, no
//     member is admitted, and the size stays at the one that holders of a divisor report.
//   - A step back of the store's clock counts as no time, a step forward as ttl/4 at most. So no
//     member is removed early unless the clock jumps more than twice in ttl/2.
//
// There are two exceptions: a store that loses more than its last ttl/2 while all members that it
// remembers have left, and a store whose clock steps back behind terms that it told and lost in
// the same failover.
func Heartbeat(s State, member string, applied Answer, ttl, now float64) (State, Answer) {
	s, changed := s.tick(ttl, now)
	if len(s.Members) == 0 {
		s.Open = s.Clock + ttl
	}
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Name == member })
	joined := i < 0
	if joined {
		i = len(s.Members)
		s.Members = append(s.Members, Member{Name: member})
	}
	m := &s.Members[i]
	// A member that joins again and again gets no answer, and must not delay the others.
	if joined || applied.Term > 0 {
		m.Until = s.Clock + ttl
	}
	lost := applied.Term > m.Term && !slices.Contains(m.Told, applied.Term)
	switch {
	case lost:
		s.Open, s.Floor = s.Clock+ttl, max(s.Floor, applied.Active)
		s.Term = max(s.Term, applied.Term)
	case applied.Term >= m.Term:
		m.Term, m.Active = applied.Term, applied.Active
	}
	if s.Clock >= s.Open {
		s.Floor = 0
	}
	if size := max(len(s.Members), s.Floor); changed || joined || lost || size != s.Size {
		s.Size = size
		s.Term = max(s.Term+1, int64(now*1e6))
	}
	if joined {
		m.Joined = s.Term
	}
	m.tell(s.Term)
	if applied.Size > 0 || s.mayEnter(*m) {
		m.Joined = 0 // a member that reports a divisor spends
	}
	return s, s.answer(i)
}

// Leave removes a member at once, which frees its share earlier than its silence would. The
// member must have stopped spending, and sends no heartbeat under this name again.
func Leave(s State, member string, ttl, now float64) State {
	s, changed := s.tick(ttl, now)
	if i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Name == member }); i >= 0 {
		spent := s.Members[i].Joined == 0
		s.Members = slices.Delete(s.Members, i, i+1)
		if spent && !slices.ContainsFunc(s.Members, func(m Member) bool { return m.Joined == 0 }) {
			// No member is left that would show that this state is an old one.
			s.Open = s.Clock + ttl
		}
		changed = true
	}
	if changed {
		s.Size = max(len(s.Members), s.Floor)
		s.Term = max(s.Term+1, int64(now*1e6))
	}
	return s
}

// tick brings the pool's clock up to date and removes stale members. The state that it returns
// shares no memory with s.
func (s State) tick(ttl, now float64) (State, bool) {
	s.Clock += min(max(0, now-s.Last), ttl*stepPart)
	s.Last = now
	n := len(s.Members)
	s.Members = slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool {
		return m.Until <= s.Clock
	})
	return s, len(s.Members) < n
}

// tell records that the member is told a term, and forgets terms that it has reported since.
func (m *Member) tell(term int64) {
	var told []int64
	for _, t := range m.Told {
		if t > m.Term && t != term {
			told = append(told, t)
		}
	}
	if term > m.Term {
		told = append(told, term)
	}
	m.Told = told
}

// mayEnter reports whether m, and all members that joined before it and so may spend, have
// applied a term that counts it.
func (s State) mayEnter(m Member) bool {
	return s.Clock >= s.Open && !slices.ContainsFunc(s.Members, func(o Member) bool {
		return o.Joined <= m.Joined && o.Term < m.Joined
	})
}

func (s State) answer(rank int) Answer {
	a := Answer{Term: s.Term, Active: s.Size, Size: s.Size, Rank: rank, Agreed: s.Clock >= s.Open}
	for _, m := range s.Members {
		a.Size = max(a.Size, m.Active)
		a.Agreed = a.Agreed && m.Term == s.Term
	}
	if s.Members[rank].Joined > 0 {
		a.Size = 0
	}
	return a
}

// visitTime is the time between two visits to one record, in seconds, by all members together. A
// permit store takes a millisecond or two for each; members that come at the same time repeat
// theirs.
const visitTime = 0.004

// Spacing returns the time from one visit of a member to its next, in seconds, that keeps the
// visits of all members apart.
func Spacing(members int) float64 { return visitTime * float64(members) }
