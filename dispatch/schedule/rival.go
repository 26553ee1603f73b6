package schedule

// A Claim is what the replicas that follow one policy store want of a limit.
type Claim struct {
	Source string   // the id of the policy store, at most MaxSource bytes; "" = unknown
	Rev    Revision // of the policies that Rate and Ramp are from
	Rate   float64  // permits a second
	Ramp   Ramp     // up to Rate
	Heard  float64  // the permit store's clock at the last request of such a replica
}

// MaxSource is how many bytes the id of a policy store may have here.
const MaxSource = 255

// RivalFor is how long a claim counts after the last request, in seconds: a minute, or as long as
// the replicas of a low limit may be silent although callers wait.
func RivalFor(rate float64) float64 { return max(60, 2/rate) }

// counts reports whether a claim beside another one still counts. Replicas ask as seldom as the
// lower rate lets them.
func (c *Claim) counts(beside *Claim, now float64) bool {
	return now-c.Heard <= RivalFor(min(c.Rate, beside.Rate))
}

// RivalCounts reports whether there is a rival whose claim still counts at now, on the store's
// clock.
func (s *State) RivalCounts(now float64) bool {
	return s.Rival.Source != "" && s.Rival.counts(&Claim{Rate: s.Top}, now)
}

// replaces reports whether a claim is of newer policies or, of the same ones, has a lower rate.
func (c *Claim) replaces(o *Claim) bool {
	return o.Rev.Before(c.Rev) || c.Rev == o.Rev && c.Rate < o.Rate
}

// Arbitrate returns the claim that is in force, and the one of another policy store if its replicas
// ask, too, once own has asked at now. held is in force until then, and rival is the other one.
// With one policy store, rival and other are the zero Claim.
//
// Revisions of one policy store tell which claim is newer; those of two stores cannot be compared,
// and the lower rate is in force. When one store's replicas have been silent for RivalFor, the
// other claim is. Of three claims, the highest is forgotten. A claim without a Source is compared
// by its revision.
func Arbitrate(held, rival, own Claim, now float64) (inForce, other Claim) {
	own.Heard = now
	if rival.Source != "" && !rival.counts(&held, now) {
		rival = Claim{}
	}
	switch {
	case held.Source == "":
		if own.replaces(&held) {
			return own, Claim{}
		}
		if own.Source != "" && own.Rev == held.Rev {
			held.Source, held.Heard = own.Source, now
		}
		return held, Claim{}
	case own.Source == "":
		if own.replaces(&held) {
			return own, Claim{}
		}
		return held, rival
	case own.Source == held.Source:
		held = held.renewed(own)
	case own.Source == rival.Source:
		rival = rival.renewed(own)
	case rival.Source == "" || own.Rate < rival.Rate:
		rival = own
	}
	if rival.Source != "" && (rival.Rate < held.Rate || !held.counts(&rival, now)) {
		held, rival = rival, held
		if !rival.counts(&held, now) {
			rival = Claim{}
		}
	}
	return held, rival
}

// renewed is a store's claim once own, of the same store, has asked.
func (c Claim) renewed(own Claim) Claim {
	if own.replaces(&c) {
		return own
	}
	c.Heard = own.Heard
	return c
}

// arbitrate makes the request one for the policies in force, if there are two policy stores.
func (a *allocation) arbitrate() {
	r := &a.r
	a.asked = r.Source
	held := Claim{Source: a.Source, Rev: a.Rev, Rate: a.Top, Ramp: a.Ramp, Heard: a.Heard}
	if a.Rival.Source == "" { // then the last request was of this store, or of none
		held.Heard = a.before
	}
	own := Claim{Source: r.Source, Rev: r.Rev, Rate: r.Rate, Ramp: r.Ramp}
	inForce, rival := Arbitrate(held, a.Rival, own, a.now)
	a.takes = held.Source != "" && inForce.Source != "" && inForce.Source != held.Source
	a.Source, a.Rival, a.Heard = inForce.Source, rival, 0
	if rival.Source != "" {
		a.Heard = inForce.Heard
	}
	if a.takes || rival.Source != "" {
		r.Rev, r.Rate, r.Ramp = inForce.Rev, inForce.Rate, inForce.Ramp
	}
}

// severalStores reports whether replicas may hold slots that follow another policy store: they do
// not hear of a change, and use these slots.
func (a *allocation) severalStores() bool { return a.takes || a.Rival.Source != "" }

// RivalOf returns the id of the policy store, of two with these ids, that a replica which follows
// the one asked is told of; "" if there is no rival, or asked is "".
func RivalOf(asked, inForce, rival string) string {
	switch {
	case rival == "" || asked == "":
		return ""
	case asked == inForce:
		return rival
	}
	return inForce
}

// ClaimsSound reports whether a store can have these claims in force and of a rival at now, on its
// clock, given policies of that revision; the zero value is no claim.
func ClaimsSound(inForce, rival Claim, now float64, given Revision) bool {
	if inForce != (Claim{}) && !inForce.Sound(now, given) {
		return false
	}
	return rival == Claim{} || inForce.Source != "" && rival.Source != "" && rival.Source != inForce.Source &&
		rival.Sound(now, given)
}

// Sound reports whether a claim can be one that Arbitrate has returned by now, on the store's
// clock, given policies of that revision.
func (c Claim) Sound(now float64, given Revision) bool {
	return len(c.Source) <= MaxSource && c.Rev.Sound(now, given) && c.Ramp.Sound(c.Rate) &&
		within(c.Heard, -maxTime, now+maxFuture)
}

// rivalSound reports whether what a state has of policy stores can be right.
func (s *State) rivalSound(now float64, given Revision) bool {
	if s.Rival == (Claim{}) {
		return len(s.Source) <= MaxSource && s.Heard == 0
	}
	inForce := Claim{Source: s.Source, Rev: s.Rev, Rate: s.Top, Ramp: s.Ramp, Heard: s.Heard}
	return ClaimsSound(inForce, s.Rival, now, given)
}
