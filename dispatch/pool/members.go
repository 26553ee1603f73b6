package pool

import (
	"fmt"
	"slices"
)

// The parts of a ttl that the argument at [Meet] rests on.
const (
	leasePart = 0.5  // a replica spends for this long after it sent its last answered call
	stepPart  = 0.25 // what one call may add to the pool's clock: the store's may jump
)

// A State is the head count of one pool: what a permit store keeps under one key. The zero value is a pool nobody has met.
type State struct {
	Term    int64    `json:"term"`              // names the present count; microseconds of the store's clock when it changed
	Size    int      `json:"size"`              // the present count
	Clock   float64  `json:"clock"`             // the pool's own time, seconds: the store's without its jumps
	Last    float64  `json:"last"`              // the store's clock at the last call
	Open    float64  `json:"open"`              // on Clock: nobody new may spend before, some may spend by a state that was lost
	Floor   int      `json:"floor,omitempty"`   // how many those may be, as far as they said
	Members []Member `json:"members,omitempty"` // in the order they joined, which is their rank
}

// A Member is one replica as the pool knows it.
type Member struct {
	Name   string  `json:"name"`
	Until  float64 `json:"until"`            // on the pool's clock: the last heartbeat + ttl
	Joined int64   `json:"joined,omitempty"` // the term it joined with, while it may not spend; 0 = it may
	Term   int64   `json:"term"`             // the newest term it reported to have applied
	Active int     `json:"active"`           // the count it reported with Term
	Told   []int64 `json:"told,omitempty"`   // terms it was told after Term
}

// An Answer is what a member is told, and what it reports back, once applied, with its next
// call. The zero value reports that it has applied nothing.
type Answer struct {
	Term   int64 // names the count
	Active int   // members of the pool, never less than may be spending
	Size   int   // the divisor to use now, >= Active; 0 = spend nothing yet
	Rank   int   // this member's, 0..Active-1, for [Share]; stable while nobody before it goes
	Agreed bool  // all members have applied Term: Size is Active, and the shares of all add up to the limit
}

// Again returns how long to wait before the next call, in seconds: ttl/20, and ttl/40 until
// all agree, so that a pool is whole again some ttl/10 after somebody left. Longer is as safe
// but slower; a lease lasts ttl/2, and calls further apart than ttl/4 slow the pool's clock.
func (a Answer) Again(ttl float64) float64 {
	if a.Agreed {
		return ttl / 20
	}
	return ttl / 40
}

// Meet is a member's heartbeat: it reports the answer that it has applied and is told the
// next. ttl, in seconds, is positive and the same for all; a member silent for that long is
// out. now is the store's clock. [Lease] is the member's side.
//
// The members agree when all have applied the present term, that is, when all report one
// count and it is the active count. Until then the divisor is the largest of the reported
// counts and the active one (the rule of Numaflow's distributed throttling). A newcomer
// spends nothing until all who joined before it have applied a term that counts it: as a rule
// when everybody has called twice, and at most 2 ttl and a call later, whatever the others
// do. The first in a pool wait one ttl, and so does everybody new after the store lost a state.
//
// Why the divisors' inverses never add up to more than 1, whatever is lost, late or doubled:
//
//   - A divisor told in a term is at least the term's count, and who has applied a term uses
//     no older one. So when the last of those who now spend was let in, the others used
//     divisors that count it, and all later terms count all of them.
//   - A reported term only grows. A late or doubled call brings an old one and changes nothing.
//   - A divisor is held for ttl/2 from the sending of the call and then given up, with the
//     name (Lease); the pool counts its holder for a ttl from the call's arrival.
//   - A term is a time, so it is never told twice. One that this state has not told its member
//     shows that the store lost a newer state. For a ttl from then, and from an empty state on,
//     nobody is let in, and the count stays at what those report who hold a divisor.
//   - The store's clock backwards counts as no time, forwards as ttl/4 at most, so that nobody
//     is out early unless it jumps more than twice in ttl/2.
//
// It does not hold for a store that loses more than its last ttl/2 while all whom it remembers
// are gone, or whose clock steps back behind terms that it told and lost in the same failover.
func Meet(s State, member string, applied Answer, ttl, now float64) (State, Answer) {
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
	if joined || applied.Term > 0 { // who joins again and again hears no answer, and must not hold up the rest
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
	if count := max(len(s.Members), s.Floor); changed || joined || lost || count != s.Size {
		s.Size = count
		s.Term = max(s.Term+1, int64(now*1e6))
	}
	if joined {
		m.Joined = s.Term
	}
	m.tell(s.Term)
	if applied.Size > 0 || s.mayEnter(*m) {
		m.Joined = 0 // who says that it spends does
	}
	return s, s.answer(i)
}

// Leave takes a member out at once, which frees its share earlier than its silence would.
// The member must have stopped spending, and never meets under this name again.
func Leave(s State, member string, ttl, now float64) State {
	s, changed := s.tick(ttl, now)
	if i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Name == member }); i >= 0 {
		spent := s.Members[i].Joined == 0
		s.Members = slices.Delete(s.Members, i, i+1)
		if spent && !slices.ContainsFunc(s.Members, func(m Member) bool { return m.Joined == 0 }) {
			s.Open = s.Clock + ttl // nobody is left who would show that this state is an old one
		}
		changed = true
	}
	if changed {
		s.Size = max(len(s.Members), s.Floor)
		s.Term = max(s.Term+1, int64(now*1e6))
	}
	return s
}

// tick brings the pool's clock up to date and takes the stale out; the state that it returns shares no memory with s.
func (s State) tick(ttl, now float64) (State, bool) {
	s.Clock += min(max(0, now-s.Last), ttl*stepPart)
	s.Last = now
	n := len(s.Members)
	s.Members = slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool { return m.Until <= s.Clock })
	return s, len(s.Members) < n
}

// tell notes that the member is told a term, and forgets those that it has reported since.
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

// mayEnter reports whether m, and all who joined before it and so may spend, have applied a term that counts it.
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

// A Lease is what one replica holds of a pool, on the replica's own clock, which only has to run
// at the store's pace. The zero value but for Replica holds nothing. A divisor is good for ttl/2
// from the moment its call was sent: a replica that was paused for longer, or has not reached the
// store, holds still until it has met again, as a newcomer with a new name. (A policy may let it
// go on while the permit store is away; that is the caller's choice and breaks the bound.)
type Lease struct {
	Replica string  // unique among processes, and drawn anew when a process starts
	Stay    int     // counts the names that this replica has met under
	Answer  Answer  // applied; hand it to [Meet]
	Until   float64 // seconds, on the replica's clock
}

// At returns the lease as it stands at now: itself while it lasts, else one that holds nothing.
// Use no other for [Share] and [Meet].
func (l Lease) At(now float64) Lease {
	if l.Answer == (Answer{}) || now < l.Until {
		return l
	}
	return Lease{Replica: l.Replica, Stay: l.Stay + 1}
}

// Member returns the name to meet and to leave under.
func (l Lease) Member() string { return fmt.Sprintf("%s#%d", l.Replica, l.Stay) }

// Renew applies the answer to a call made under the name member and sent at the time sent. An
// answer to another name, or older than what is applied, changes nothing.
func (l Lease) Renew(member string, a Answer, sent, ttl float64) Lease {
	if member == l.Member() && a.Term >= l.Answer.Term {
		l.Answer, l.Until = a, max(l.Until, sent+ttl*leasePart)
	}
	return l
}

// Left returns the lease after a goodbye: nothing held, and a new name for a next stay. Call it before [Leave].
func (l Lease) Left() Lease { return Lease{Replica: l.Replica, Stay: l.Stay + 1} }
