// Package schedule is the arithmetic by which many replicas share one limit.
//
// A limit of R permits a second is a line of slots on the store's clock, 1/R apart: its schedule.
// A replica that requests permits is allocated the next free slots, a batch at a time, at the tail
// of the schedule. Allocate computes this allocation: a pure function of the state, the request
// and the store's clock. Permit stores run it where they keep the state. The Redis permit store
// runs its twin in Lua, which does the same operations in the same order, so that both give
// identical replies, to the last bit.
//
// Times are seconds, and rates are permits a second. Both are float64, since scripts in a store
// have no other numbers. Permits are whole numbers.
package schedule

import (
	"math"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
)

// Version is that of the stored form of a State. A permit store refuses a newer one.
const Version = 4

// MaxVersion is the latest version that stored data can have: a later one is damage.
const MaxVersion = 1000

// A State is the schedule of one limit, as the store keeps it; the zero value is a limit without
// allocations.
type State struct {
	Inc      int64    // incarnation, drawn when the state was made; 0 = no state
	Seq      int64    // allocations made
	Last     float64  // clock at the last request
	Checked  float64  // clock at the last request with bounds, which say what the clock should show
	Resumed  float64  // clock at the first request after the last silence
	Shifts   float64  // seconds that the times here have moved by in all: the clock has stepped
	Step     Step     // the last of these steps
	Server   float64  // number of the server that last ran a strict request; 0 = unknown
	Rev      Revision // of the policies that Top and Ramp are from
	Rate     float64  // permits a second, now
	Top      float64  // without a ramp, or at its end
	Ramp     Ramp
	Line     Line
	Tail     float64 // the time up to which slots are allocated
	Quick    float64 // the time up to which slots are allocated to those with credit
	Epoch    int64
	Start    float64  // of the epoch
	This     Sums     // of this epoch
	Prev     Sums     // of the epoch before
	Queue    []Waiter `json:",omitempty"` // for slots of a strict schedule, in the order they came
	Outcomes Outcomes `json:",omitzero"`  // of a limit with a Rule
}

// A Revision is the revision of policies.
type Revision struct {
	Epoch  int64 // when their store was last adopted, Unix milliseconds; 0 = never
	Number int64 // of the store; revisions of a later epoch are newer, whatever their number
}

// Before reports whether r is older than o.
func (r Revision) Before(o Revision) bool {
	return r.Epoch < o.Epoch || r.Epoch == o.Epoch && r.Number < o.Number
}

// Sums are what all subscriptions have shown in one epoch.
type Sums struct {
	Weight   float64 // active weight
	Reserved float64 // its reservations, permits a second
	Need     float64 // the longest time that a replica must wait for one permit, seconds
}

// A Sub is what the store keeps for one subscription of a limit; the zero value is one without
// requests.
type Sub struct {
	Epoch int64 // of its last request
	This  Part
	Prev  Part
}

// A Part is what one subscription has shown in one epoch.
type Part struct {
	K        float64 // its demand, in shares of a replica
	Weight   float64 // its part of the limit's sums
	Reserved float64
}

// Carry is what a replica keeps of a reply and sends with its next request, so that the store
// need not remember replicas. The zero value is that of a replica's first request.
type Carry struct {
	Inc, Seq, Epoch int64
	Shifts          float64 // of the state
	Eff             float64 // as what part of a share this replica was counted, 0..1
	Fraction        float64 // of a permit, left over from the last quantum
	Round           float64 // seconds; 0 = none yet
	Refused         float64 // how often this replica was refused since it was allocated permits
}

// A Request asks for permits of one limit, for one replica of a subscription.
type Request struct {
	Subscription string
	Weight       float64  // > 0
	Reserved     float64  // permits a second
	Demand       float64  // permits a second
	Want         float64  // permits; 0 = none, which only gives back
	Returned     float64  // permits allocated earlier and not spent, which are given back
	Held         float64  // permits allocated earlier and not spent, without Returned
	Lead         float64  // for how long replicas hold slots of a lost state, as far as known, seconds
	RTT          float64  // of the last requests, seconds
	Round        float64  // the policy's round T, seconds
	Burst        float64  // permits that an idle limit saves up
	Rate         float64  // the policy's, permits a second, > 0; see Allocate
	Ramp         Ramp     // up to Rate
	Rev          Revision // of the policies that Rate and Ramp are from
	NotAfter     float64  // on the store's clock: when the request is too late; 0 = never
	Strict       bool     // one slot at a time, no credit, nothing shared by weight
	MaxReserved  float64  // of a strict limit: future slots, with this one; 0 = only a slot due now
	Waiter       string   // of Strict: its name in the queue, at most 255 bytes; "" = does not queue
	Nonce        int64    // > 0, random: the incarnation of a new state
	Rule         busy.Rule
	Answers      Answers // of a Rule: since the last request
	Low, High    float64 // of the store's clock when this was sent, by the last reply; 0 = unknown
	Sole         bool    // the store has never lost a state, nor do replicas hold slots of one
	Server       float64 // of Strict: number of the server, set by the store; 0 = unknown
	Carry        Carry
}

// A Reply is the answer to a Request. N is 0 if nothing was wanted, or if the line is full: then
// Start is when to ask again at the earliest, and, unless the request was strict, the line may run
// empty Gap later.
type Reply struct {
	Late  bool    // the request came after NotAfter: nothing was changed
	Lost  bool    // the state was out of bounds: a new one has replaced it
	N     float64 // permits
	Start float64 // of the first slot, seconds from Now, < 0 if saved up; see above if N is 0
	Share float64 // permits a second that this replica may count on
	Rate  float64 // of the limit now, permits a second
	Gap   float64 // seconds between two slots, and after the last; on a ramp less than 1/Rate
	Lead  float64 // how far ahead slots were allocated before these, seconds; 0 if strict, or N is 0
	Wake  string  // a waiter, not the caller, whose turn has come: the store wakes it
	Now   float64 // the store's clock
	Ahead float64 // seconds that the tail is further ahead since a presumed step of the clock
	Since float64 // seconds since the first request after the last silence
	Carry Carry
}

// firstEpoch is that of a new state; a replica with a Carry of an earlier one has not been
// counted.
const firstEpoch = 2

// maxNeed bounds the round, in seconds.
const maxNeed = 2.0

// maxStretch is how many permits a round may have that is longer than the policy's, for the sake
// of a light share: a batch of one permit is then its part of a round, and the other replicas'
// batches stay in proportion. A longer round would grant more in a short time. Replicas whose
// share of such a round is under one permit skip rounds instead.
const maxStretch = 16.0

// Stretch returns how long a round may become for a light share, in seconds.
func Stretch(rate float64) float64 { return min(maxNeed, maxStretch/rate) }

// MaxTurn is the longest that a replica with a light share leaves the line to others between two
// requests, in seconds: a share lighter than one permit in that time gets that one.
const MaxTurn = 5.0

// furthest is how far ahead of the clock slots are allocated, in seconds: two slots, and at least
// two seconds, or as long as the store needs for some answers. So however many replicas are
// allocated slots and then die, the next one waits no longer.
func furthest(rate, rtt float64) float64 {
	return max(2, 2/rate, float64(7*min(rtt, maxNeed/3)))
}

// reach is how far ahead a replica is allocated slots. One that was not refused is left half of
// what there is, or what the answers need, and one that was refused half of the rest each time:
// those that have waited longest come first.
func reach(rate, rtt, refused float64) float64 {
	all := furthest(rate, rtt)
	first := max(all/2, float64(6*min(rtt, maxNeed/3)))
	return all - (all-first)/math.Exp2(min(maxRefused, math.Floor(refused)))
}

// spread is how many times its own length after the one before an allocation with credit begins.
// They lie among slots that are allocated already: many replicas that came at once would have a
// burst as long as the credit.
const spread = 2.5

// maxRefused bounds how many refusals make a difference.
const maxRefused = 50.0

// minAlone is how many permits a replica without others requests at least, if a round has as many:
// half a round would be one request for each permit of a low limit.
const minAlone = 2.0

// roundStep is the factor by which a replica's round may change between two requests; more would
// disturb the pace of all.
const roundStep = 1.25

// Allocate allocates the permits that r requests, at the store's time now, and returns the new
// states and the reply.
//
// The rate and the ramp of the newest revision are in force. Of two rates of one revision the lower
// one is: policies of a revision have one rate, so that a higher one in the state is damage, or was
// found by another replica at the same time (quotas).
//
// Each product that is added to another number is converted to float64, which keeps compilers from
// fusing the two operations: the twin in Lua rounds each of them.
func Allocate(s State, sub Sub, r Request, now float64) (State, Sub, Reply) {
	if r.NotAfter > 0 && now > r.NotAfter {
		return s, sub, Reply{Late: true, Now: now}
	}
	lost := s.Inc != 0 && !s.sound(now, r.Rev)
	known := s.Inc != 0 && !lost // there was a state before this request
	if !known {
		s = State{
			Inc: r.Nonce, Last: now, Checked: now, Resumed: now, Tail: now, Epoch: firstEpoch,
			Start: now, Rev: r.Rev, Rate: r.Rate, Top: r.Rate, Ramp: r.Ramp,
		}
	}
	if !known || !sub.sound() {
		sub = Sub{}
	}
	// An old state that has come back is as good as lost.
	old := known && r.Carry.Inc == s.Inc && r.Carry.Seq > s.Seq
	if r.Strict && known {
		old = old || s.Server != r.Server // a failover, or a restart
	}
	if old {
		s.Inc, s.Shifts = r.Nonce, 0
	}
	replaces := r.Carry.Inc != 0 && (!known || old) // a state that others know, too
	if replaces {
		s.Inc = successor(r.Carry.Inc, r.Nonce)
	}
	if known {
		s.follow(r, now)
	}
	if r.Strict {
		s.Server = r.Server
	}
	if now-s.Last > silence || s.Resumed > now {
		s.Resumed = now
	}
	s.Last = now
	newer, lower := s.Rev.Before(r.Rev), s.Rev == r.Rev && r.Rate < s.Top
	otherPace := newer && (r.Rate != s.Top || r.Ramp != s.Ramp) || // else only the revision is newer
		lower && r.Strict // else the slots stay: a damaged rate does not say how many they are
	allocated, was := 0.0, s.Rate
	if newer || lower {
		allocated = s.slope(now, now).count(s.Tail - now)
		s.Rev, s.Top, s.Ramp, s.Rate = r.Rev, r.Rate, r.Ramp, r.Rate
	}
	if s.Ramp.Over <= 0 {
		s.Line = Line{}
	} else if r.Ramp.Over > 0 { // a replica that does not know of the ramp does not move it
		s.Line, s.Rate = s.Ramp.At(s.Line, s.Top, r.Want > 0, s.Tail > now, now)
	}
	if r.Rule.Mode != busy.None && !r.Strict {
		if pace := s.slowed(r, now); pace != s.Rate {
			if !newer {
				allocated = s.slope(now, now).count(s.Tail - now)
			}
			s.Rate, otherPace = pace, true
		}
	}
	rate := s.Rate
	if rate > was { // a permit takes less time
		s.This.Need, s.Prev.Need = s.This.Need*was/rate, s.Prev.Need*was/rate
	}
	switch {
	case !otherPace:
	case r.Strict:
		s.pace(was, now)
	case s.Tail > now: // the same permits stay allocated, at the new rate
		s.Tail = now + s.slope(now, now).span(allocated)
		switch limit := now + furthest(rate, maxNeed); {
		case s.Tail <= limit:
		case newer:
			s.renew(r.Nonce, now)
		default: // a busy limit: replicas use what they hold all the same
			s.Tail = limit
		}
	}
	s.Quick = min(s.Quick, s.Tail)
	c := r.Carry
	stranger := c.Inc != s.Inc // the replica knows another state, or none
	foreign := stranger && c.Inc != 0
	switch {
	case !stranger:
	case r.Strict && old: // all slots are void
		s.Tail = now + (Unconfirmed + s.slope(now, now).span(1))
	case r.Strict: // slots of another state may be in use still
		if c.Inc != 0 || !known && !r.Sole {
			s.Tail = max(s.Tail, now+(Unconfirmed+s.slope(now, now).span(1)))
		}
	case replaces: // the slots that replicas hold are not in this state
		s.Tail = max(s.Tail, now+max(s.slope(now, now).span(r.Held), min(r.Lead, furthest(rate, r.RTT))))
	case s.replaced(c.Inc): // they are, as far as known
		s.Tail = max(s.Tail, now+s.slope(now, now).span(r.Held))
	default: // those that the replica holds are not
		s.Tail = max(s.Tail, now) + s.atTail(now).span(r.Held)
	}
	if stranger {
		r.Returned = 0
		c = Carry{}
	}
	if r.Strict {
		reply := s.reserve(r, c, now)
		reply.Lost = lost
		reply.Ahead, reply.Since, reply.Carry.Shifts = s.Step.Ahead, now-s.Resumed, s.Shifts
		return s, sub, reply
	}
	if r.MaxReserved > 0 && c.Seq != s.Seq { // strict requests have slots after these, a period apart
		r.Returned = 0
	}
	s.roll(&sub, max(4*r.Round, float64(1.5*min(MaxTurn, 1/s.share(sub, r)))), now)
	s.Tail = max(now-r.Burst/rate, s.Tail-s.atTail(now).span(r.Returned))
	reply := Reply{
		Lost: lost, Now: now, Rate: rate, Ahead: s.Step.Ahead, Since: now - s.Resumed, Carry: c,
	}
	reply.Carry.Inc, reply.Carry.Seq, reply.Carry.Shifts = s.Inc, s.Seq, s.Shifts
	if r.Want <= 0 {
		return s, sub, reply
	}

	newcomer := stranger || c.Epoch < s.Epoch-1 // counted in neither epoch
	eff := 1.0
	if share := s.share(sub, r); r.Demand < share {
		eff = r.Demand / share
	}
	if stranger {
		eff = max(0.5, eff) // its demand is not known yet
	}
	s.count(&sub, r, c, eff, newcomer)
	share := s.share(sub, r)

	s.This.Need = max(s.This.Need, min(maxNeed, max(min(1/share, Stretch(rate)), 3*r.RTT)))
	round := max(r.Round, s.This.Need, s.Prev.Need)
	if c.Round > 0 {
		round = min(max(round, c.Round/roundStep), float64(c.Round*roundStep))
	}
	part := round
	if share >= float64(rate*(1-1e-9)) && share*part >= 2*minAlone {
		part /= 2 // alone
	}
	if newcomer {
		part /= 2
	}
	due := float64(share*part) + c.Fraction
	quantum := max(1, math.Floor(due))
	reply.Share, reply.Carry.Epoch, reply.Carry.Eff, reply.Carry.Round = share, s.Epoch, eff, round
	if c.Epoch == s.Epoch {
		reply.Carry.Eff = max(eff, c.Eff)
	}
	one, ahead := s.atTail(now).span(1), s.Tail-now
	room := reach(rate, r.RTT, c.Refused) - ahead
	if room < one-1e-9 {
		reply.Carry.Refused = c.Refused + 1
		reply.Start = max(0, ahead+one-reach(rate, r.RTT, reply.Carry.Refused))
		reply.Gap = max(0, ahead-reply.Start)
		return s, sub, reply
	}
	n := min(max(1, math.Floor(r.Want+0.5)), quantum, max(1, math.Floor(room/one)))
	fraction := 0.0
	if n == quantum {
		fraction = max(0, due-quantum)
	}
	credit := 0.0
	if (r.Demand < share || newcomer) && !foreign && r.RTT < r.Round {
		credit = 1.5 * r.Round
	}
	start := max(min(now, s.Tail), s.Tail-credit)
	long := s.atTail(now).span(n)
	if credit > 0 {
		if start = min(s.Tail, max(start, s.Quick)); start < s.Tail {
			s.Quick = start + float64(spread*long)
		}
	}
	s.Tail += long
	s.Seq++

	reply.N, reply.Start, reply.Gap, reply.Lead = n, start-now, long/n, ahead
	reply.Carry.Seq, reply.Carry.Fraction, reply.Carry.Refused = s.Seq, fraction, 0
	return s, sub, reply
}

// lineage is how many incarnations a successor tells apart, and nonces how many nonces.
const lineage, nonces = 1 << 20, 1 << 32

// successor is the incarnation of a state that replaces one that is lost. The incarnation of that
// one is in it, but for a part, so that the state knows replicas that were in the lost one: it was
// made with room for the slots that they hold, as far as the first of them knew.
func successor(lost, nonce int64) int64 { return lost%lineage*nonces + nonce%nonces }

// replaced reports whether the state has replaced the one with that incarnation.
func (s *State) replaced(inc int64) bool { return inc > 0 && s.Inc/nonces == inc%lineage }

// renew begins a new line, which knows nothing of the slots of the one before: at the new rate they
// would fill it for long. Replicas drop what they hold of them when they hear of the rate. What
// would last for a second at most they keep, and say so with their next requests.
func (s *State) renew(nonce int64, now float64) {
	s.Inc, s.Shifts = nonce, 0
	s.Epoch, s.Start, s.This, s.Prev = s.Epoch+2, now, Sums{}, Sums{}
	s.Tail = now + s.slope(now, now).span(1)
}

// roll begins a new epoch when the present one is over, at least that many seconds after its start,
// and moves the subscription to the present one.
func (s *State) roll(sub *Sub, least, now float64) {
	length := max(least, float64(2*(s.Tail-now)))
	if now-s.Start >= length {
		s.Prev, s.This = s.This, Sums{}
		s.Epoch++
		if now-s.Start >= 2*length {
			s.Prev = Sums{}
			s.Epoch++
		}
		s.Start = now
	}
	switch sub.Epoch {
	case s.Epoch:
	case s.Epoch - 1:
		sub.Prev, sub.This = sub.This, Part{}
	default:
		*sub = Sub{}
	}
	sub.Epoch = s.Epoch
}

// share is what one replica of the subscription may count on: reserved first, the rest by weight,
// divided by the number of replicas with demand; reservations beyond the rate are scaled down.
func (s *State) share(sub Sub, r Request) float64 {
	weight := max(s.This.Weight, s.Prev.Weight, r.Weight)
	reserved := max(s.This.Reserved, s.Prev.Reserved, r.Reserved)
	own := r.Reserved
	if reserved > s.Rate {
		own = own * s.Rate / reserved
		reserved = s.Rate
	}
	return (own + float64((s.Rate-reserved)*r.Weight/weight)) / max(1, sub.This.K, sub.Prev.K)
}

// count adds this replica's demand, as a part of a share, to the sums of the subscription and the
// limit.
func (s *State) count(sub *Sub, r Request, c Carry, eff float64, newcomer bool) {
	more := max(0, eff-c.Eff)
	switch {
	case newcomer:
		sub.This.K += eff
		sub.Prev.K += eff
	case c.Epoch == s.Epoch:
		sub.This.K += more
		sub.Prev.K += more
	default: // counted in the epoch before
		sub.This.K += eff
		sub.Prev.K += more
	}
	s.This.weigh(&sub.This, r)
	s.Prev.weigh(&sub.Prev, r)
}

// weigh updates the subscription's part of the sums.
func (t *Sums) weigh(p *Part, r Request) {
	k := min(1, p.K)
	weight, reserved := float64(r.Weight*k), float64(r.Reserved*k)
	t.Weight += weight - p.Weight
	t.Reserved += reserved - p.Reserved
	p.Weight, p.Reserved = weight, reserved
}

// LeastLifetime is how long each state is kept without a request, in seconds.
const LeastLifetime = 3600

// week is the longest for which an unused strict schedule of many periods is kept, seconds.
const week = 7 * 24 * 3600

// Lifetime returns how long a state is kept without a request, in seconds: as long as it can
// matter, and LeastLifetime at least. A new strict schedule starts after a period and a second. An
// unused one is therefore kept for a thousand periods, or for a week if that is shorter, but for
// ten periods at least: what a caller then waits is little beside how long it was away.
func (s State) Lifetime(strict bool, now float64) float64 {
	periods := 2 / s.Rate
	if strict {
		periods = max(10/s.Rate, min(week, 1000/s.Rate))
	}
	return max(LeastLifetime, 2*(s.Tail-now), periods)
}
