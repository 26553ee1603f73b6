package engine

import (
	"slices"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// shares are those of a lane: of the limits that the policies say, and of limits that no longer
// apply. Engine.mu guards them.
type shares struct {
	inForce *Admission       // what the policies say, before caught up and outages; never nil
	retired []*sharing.Share // of limits that no longer apply: what they hold goes back
	debts   map[string]int64 // of such limits, by their keys
}

func (s *shares) all() []*sharing.Share { return slices.Concat(s.inForce.all, s.retired) }

// obtain returns the share of a limit, with the limit applied: the one that there is, or one that
// has retired, or a new one with the debts of the limit.
func (s *shares) obtain(limit resolve.Limit, env *sharing.Env, now float64) *sharing.Share {
	fits := func(s *sharing.Share) bool { return s.Fits(limit) }
	if i := slices.IndexFunc(s.inForce.all, fits); i >= 0 {
		share := s.inForce.all[i]
		share.Apply(limit)
		return share
	}
	if i := slices.IndexFunc(s.retired, fits); i >= 0 {
		share := s.retired[i]
		s.retired = slices.Delete(s.retired, i, i+1)
		share.Apply(limit)
		return share
	}
	share := sharing.New(env, limit, now)
	if debt := s.debts[limit.Key]; debt > 0 {
		share.Owe(debt)
		delete(s.debts, limit.Key)
	}
	for _, other := range s.all() { // in another mode, the limit retires: its debt moves here
		if other.Limit.Key == limit.Key {
			share.Owe(other.TakeDebt())
		}
	}
	return share
}

// replace puts limits in force, and returns the shares of those that no longer apply: they retire.
func (s *shares) replace(limits *Admission) (retired []*sharing.Share) {
	for _, share := range s.inForce.all {
		if !limits.has(share) {
			retired = append(retired, share)
		}
	}
	s.inForce, s.retired = limits, append(s.retired, retired...)
	return retired
}

// dropRetired forgets the shares that have given back what they held. A debt waits for the limit
// to apply again.
func (s *shares) dropRetired() {
	s.retired = slices.DeleteFunc(s.retired, func(share *sharing.Share) bool {
		if !share.Mode.Idle() {
			return false
		}
		s.keepDebtOf(share)
		return true
	})
}

// keepDebtOf notes the debt of a share.
func (s *shares) keepDebtOf(share *sharing.Share) {
	if debt := share.TakeDebt(); debt > 0 {
		s.owe(share.Limit.Key, debt)
	}
}

// owe notes a debt of a limit that does not apply.
func (s *shares) owe(key string, debt int64) {
	if s.debts == nil {
		s.debts = map[string]int64{}
	}
	s.debts[key] += debt
}

// owes reports whether more was used than granted.
func (s *shares) owes() bool {
	indebted := func(s *sharing.Share) bool { return s.Debt() > 0 }
	return len(s.debts) > 0 || slices.ContainsFunc(s.all(), indebted)
}

// takeOver moves here what the shares of an ended lane keep. Those in fair mode move. The others
// stay with that lane until they have given back what they hold, and have left their queue, pool or
// group; their debts move.
func (s *shares) takeOver(old *shares, none *Admission) {
	var leaving []*sharing.Share
	for _, share := range old.all() {
		if share.Mode.Reopen() {
			s.retired = append(s.retired, share)
			continue
		}
		s.keepDebtOf(share)
		leaving = append(leaving, share)
	}
	for key, debt := range old.debts {
		s.owe(key, debt)
	}
	*old = shares{inForce: none, retired: leaving}
}
