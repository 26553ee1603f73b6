package schedule

import "math"

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

// MaxRest is the longest that a replica with a light share leaves the line to others between two
// requests, in seconds: a share lighter than one permit in that time gets that one.
const MaxRest = 5.0

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

// paceShared keeps the permits that are allocated, at the new rate.
func (a *allocation) paceShared() {
	if now := a.now; a.otherPace && a.Tail > now {
		a.Tail = now + a.slope(now, now).span(a.allocated)
		switch limit := now + furthest(a.Rate, maxNeed); {
		case a.Tail <= limit:
		case a.newer && !a.severalStores():
			a.renew()
		default: // a busy limit, or a rival's: replicas use what they hold all the same
			a.Tail = limit
		}
	}
	a.Quick = min(a.Quick, a.Tail)
}

// renew begins a new line, which knows nothing of the slots of the one before: at the new rate they
// would fill it for long. Replicas drop what they hold of them when they hear of the rate. What
// would last for a second at most they keep, and say so with their next requests.
func (a *allocation) renew() {
	a.Inc, a.Shifts = a.r.Nonce, 0
	a.Epoch, a.Start, a.This, a.Prev = a.Epoch+2, a.now, Sums{}, Sums{}
	a.Tail = a.now + a.slope(a.now, a.now).span(1)
}

// meetShared makes room for the slots that a stranger may hold.
func (a *allocation) meetShared() {
	r, now := &a.r, a.now
	if !a.strange() {
		return
	}
	switch {
	case a.replaces: // the slots that replicas hold are not in this state
		a.Tail = max(a.Tail, now+max(a.slope(now, now).span(r.Held), min(r.Lead, furthest(a.Rate, r.RTT))))
	case a.replaced(r.Carry.Inc): // they are, as far as known
		a.Tail = max(a.Tail, now+a.slope(now, now).span(r.Held))
	default: // those that the replica holds are not
		a.Tail = max(a.Tail, now) + a.atTail(now).span(r.Held)
	}
	a.forget()
}

// roll begins a new epoch when the present one is over, and moves the subscription to the present
// one.
func (a *allocation) roll() {
	least := max(4*a.r.Round, float64(1.5*min(MaxRest, 1/a.share())))
	length := max(least, float64(2*(a.Tail-a.now)))
	if a.now-a.Start >= length {
		a.Prev, a.This = a.This, Sums{}
		a.Epoch++
		if a.now-a.Start >= 2*length {
			a.Prev = Sums{}
			a.Epoch++
		}
		a.Start = a.now
	}
	switch a.sub.Epoch {
	case a.Epoch:
	case a.Epoch - 1:
		a.sub.Prev, a.sub.This = a.sub.This, Part{}
	default:
		a.sub = Sub{}
	}
	a.sub.Epoch = a.Epoch
}

// giveBack makes the slots of permits that come back free again.
func (a *allocation) giveBack() {
	if a.r.MaxReserved > 0 && a.r.Carry.Seq != a.Seq {
		a.r.Returned = 0 // strict requests have slots after these, a period apart
	}
	a.Tail = max(a.now-a.r.Burst/a.Rate, a.Tail-a.atTail(a.now).span(a.r.Returned))
}

// allot allocates the next slots of the line.
func (a *allocation) allot() Reply {
	reply := Reply{Carry: a.r.Carry}
	reply.Carry.Inc, reply.Carry.Seq = a.Inc, a.Seq
	if a.r.Want <= 0 {
		return reply
	}
	newcomer := a.stranger || a.r.Carry.Epoch < a.Epoch-1 // counted in neither epoch
	eff := a.count(newcomer)
	share := a.share()
	round := a.round(share)
	reply.Share, reply.Carry.Epoch, reply.Carry.Eff, reply.Carry.Round = share, a.Epoch, eff, round
	if a.r.Carry.Epoch == a.Epoch {
		reply.Carry.Eff = max(eff, a.r.Carry.Eff)
	}
	one, ahead := a.atTail(a.now).span(1), a.Tail-a.now
	room := reach(a.Rate, a.r.RTT, a.r.Carry.Refused) - ahead
	if room < one-1e-9 { // the line is full
		reply.Carry.Refused = a.r.Carry.Refused + 1
		reply.Start = max(0, ahead+one-reach(a.Rate, a.r.RTT, reply.Carry.Refused))
		reply.Gap = max(0, ahead-reply.Start)
		return reply
	}
	part := a.part(share, round, newcomer)
	quantum := max(1, math.Floor(part))
	n := min(max(1, math.Floor(a.r.Want+0.5)), quantum, max(1, math.Floor(room/one)))
	fraction := 0.0
	if n == quantum {
		fraction = max(0, part-quantum)
	}
	start, gap := a.take(n, (a.r.Demand < share || newcomer) && !a.foreign)
	reply.N, reply.Start, reply.Gap, reply.Lead = n, start-a.now, gap, ahead
	reply.Carry.Seq, reply.Carry.Fraction, reply.Carry.Refused = a.Seq, fraction, 0
	return reply
}

// share is what one replica of the subscription may count on: reserved first, the rest by weight,
// divided by the number of replicas with demand; reservations beyond the rate are scaled down.
func (a *allocation) share() float64 {
	weight := max(a.This.Weight, a.Prev.Weight, a.r.Weight)
	reserved := max(a.This.Reserved, a.Prev.Reserved, a.r.Reserved)
	own := a.r.Reserved
	if reserved > a.Rate {
		own = own * a.Rate / reserved
		reserved = a.Rate
	}
	return (own + float64((a.Rate-reserved)*a.r.Weight/weight)) / max(1, a.sub.This.K, a.sub.Prev.K)
}

// count adds this replica's demand, as a part of a share, to the sums of the subscription and the
// limit, and returns that part.
func (a *allocation) count(newcomer bool) (eff float64) {
	eff = 1
	if share := a.share(); a.r.Demand < share {
		eff = a.r.Demand / share
	}
	if a.stranger {
		eff = max(0.5, eff) // its demand is not known yet
	}
	more := max(0, eff-a.r.Carry.Eff)
	switch {
	case newcomer:
		a.sub.This.K += eff
		a.sub.Prev.K += eff
	case a.r.Carry.Epoch == a.Epoch:
		a.sub.This.K += more
		a.sub.Prev.K += more
	default: // counted in the epoch before
		a.sub.This.K += eff
		a.sub.Prev.K += more
	}
	a.This.weigh(&a.sub.This, a.r)
	a.Prev.weigh(&a.sub.Prev, a.r)
	return eff
}

// weigh updates the subscription's part of the sums.
func (t *Sums) weigh(p *Part, r Request) {
	k := min(1, p.K)
	weight, reserved := float64(r.Weight*k), float64(r.Reserved*k)
	t.Weight += weight - p.Weight
	t.Reserved += reserved - p.Reserved
	p.Weight, p.Reserved = weight, reserved
}

// round is the replica's round: as long as one permit of each replica takes, and three requests.
func (a *allocation) round(share float64) float64 {
	a.This.Need = max(a.This.Need, min(maxNeed, max(min(1/share, Stretch(a.Rate)), 3*a.r.RTT)))
	round := max(a.r.Round, a.This.Need, a.Prev.Need)
	if before := a.r.Carry.Round; before > 0 {
		round = min(max(round, before/roundStep), float64(before*roundStep))
	}
	return round
}

// part is the replica's part of a round, in permits: half of it for a newcomer, and for a replica
// that is alone.
func (a *allocation) part(share, round float64, newcomer bool) float64 {
	if share >= float64(a.Rate*(1-1e-9)) && share*round >= 2*minAlone {
		round /= 2 // alone
	}
	if newcomer {
		round /= 2
	}
	return float64(share*round) + a.r.Carry.Fraction
}

// take takes the next n slots: with credit, from up to one and a half rounds before the tail.
func (a *allocation) take(n float64, credited bool) (start, gap float64) {
	credit := 0.0
	if credited && a.r.RTT < a.r.Round {
		credit = 1.5 * a.r.Round
	}
	start = max(min(a.now, a.Tail), a.Tail-credit)
	long := a.atTail(a.now).span(n)
	if credit > 0 {
		if start = min(a.Tail, max(start, a.Quick)); start < a.Tail {
			a.Quick = start + float64(spread*long)
		}
	}
	a.Tail += long
	a.Seq++
	return start, long / n
}
