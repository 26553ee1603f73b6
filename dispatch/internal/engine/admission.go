package engine

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// An Admission is a set of limits, with what follows from it for calls. A lane has two:
// shares.inForce, as the policies say, and Lane.admission, what its messages must pass now. It is
// replaced, never changed, and any goroutine may use it; nil limits nothing.
type Admission struct {
	Only *sharing.Share // the share of a message's one limit, if there is nothing else to look at

	all       []*sharing.Share // the limits of messages, then those of bytes
	bytesFrom int              // where those of bytes begin
	messages  []*sharing.Share // the limits of messages that are enforced
	bytes     []*sharing.Share // those of bytes
	shadow    shadow           // those that are not
	lane      *Lane            // for Grants, which lead to it only by their Admission
	steps     *atomic.Uint64   // of the loop

	maxInFlight    int64          // messages handed out and not Done; 0 = any number
	shadowInFlight bool           // maxInFlight is in shadow mode
	untracked      *Admission     // of shadowInFlight: without maxInFlight, for messages beyond it
	paced          *sharing.Share // the one whose mode is strict, or nil
	several        bool           // there are several limits of messages, and nothing else to look at
	holds          bool           // permits may be given back after a Hold
	paused         bool
	closed         bool
}

// newAdmission returns the admission of a lane whose shares are those of what was resolved.
func newAdmission(l *Lane, messages, bytes []*sharing.Share, r *resolve.Resolved) *Admission {
	a := &Admission{
		lane: l, steps: &l.core.steps,
		maxInFlight: r.MaxInFlight, shadowInFlight: r.ShadowInFlight, paused: r.Paused,
	}
	a.set(messages, bytes)
	return a
}

// unlimited is what no policy limits.
func unlimited(l *Lane) *Admission { return newAdmission(l, nil, nil, &resolve.Resolved{}) }

// closedAdmission fails every call.
func closedAdmission(l *Lane) *Admission {
	return &Admission{lane: l, steps: &l.core.steps, closed: true}
}

// set sets the shares, and what follows from them.
func (a *Admission) set(messages, bytes []*sharing.Share) {
	a.all, a.bytesFrom = slices.Concat(messages, bytes), len(messages)
	a.shadow = shadow{messages: shadowsOf(messages), bytes: shadowsOf(bytes)}
	a.messages, a.bytes = a.all[:len(messages):len(messages)], a.all[len(messages):]
	isShadow := func(s *sharing.Share) bool { return s.Limit.Shadow }
	if !a.shadow.empty() {
		a.messages = slices.DeleteFunc(slices.Clone(messages), isShadow)
		a.bytes = slices.DeleteFunc(slices.Clone(bytes), isShadow)
	}
	a.paced, a.holds, a.untracked = nil, true, nil
	for _, limits := range [][]*sharing.Share{a.messages, a.bytes} {
		for _, s := range limits {
			if s.Paced {
				a.paced = s
			}
			a.holds = a.holds && s.Holds
		}
	}
	if a.maxInFlight > 0 && a.shadowInFlight {
		untracked := *a
		untracked.maxInFlight = 0
		a.untracked = &untracked
	}
	short := a.shadow.empty() && len(bytes) == 0 && a.maxInFlight == 0 && !a.paused && a.paced == nil
	a.Only, a.several = nil, short && len(messages) > 1
	if short && len(messages) == 1 {
		a.Only = messages[0]
	}
}

// without returns the admission without the limits that do not apply now, or nil if nothing
// remains.
func (a *Admission) without(exempt func(*sharing.Share) bool) *Admission {
	if slices.ContainsFunc(a.all, exempt) {
		rest := *a
		messages := slices.DeleteFunc(slices.Clone(a.all[:a.bytesFrom]), exempt)
		rest.set(messages, slices.DeleteFunc(slices.Clone(a.all[a.bytesFrom:]), exempt))
		a = &rest
	}
	if len(a.all) == 0 && a.maxInFlight == 0 {
		return nil
	}
	return a
}

func (a *Admission) has(s *sharing.Share) bool { return slices.Contains(a.all, s) }

// Paced reports whether a limit's mode is strict.
func (a *Admission) Paced() bool { return a.paced != nil }

// MaxInFlight is how many messages may be handed out and not Done; 0 = any number.
func (a *Admission) MaxInFlight() int64 { return a.maxInFlight }

// boundsInFlight reports whether no more than maxInFlight messages may be in flight.
func (a *Admission) boundsInFlight() bool { return a.maxInFlight > 0 && !a.shadowInFlight }

// limitsBytes reports whether there is a limit of bytes, in shadow mode or not.
func (a *Admission) limitsBytes() bool { return a.bytesFrom < len(a.all) }

// firstEmpty is the first enforced limit that has no permit now and that is not except, or nil.
func (a *Admission) firstEmpty(except *sharing.Share) *sharing.Share {
	for _, limits := range [...][]*sharing.Share{a.messages, a.bytes} {
		for _, s := range limits {
			if s != except && s.Empty() {
				return s
			}
		}
	}
	return nil
}

// lacksOther reports whether a limit other than the strict one has no permit.
func (a *Admission) lacksOther() bool { return a.firstEmpty(a.paced) != nil }

// hindered is how many of n callers have to wait for a limit of messages other than the strict one,
// by what is allocated of it. It is n-1 at most: one caller goes on asking, so that the strict
// limit is used.
func (a *Admission) hindered(n int) (hindered int) {
	for _, s := range a.messages {
		if s != a.paced {
			hindered = max(hindered, n-max(1, int(s.Unspent())))
		}
	}
	return hindered
}

// take takes up to max permits of every limit and charges size bytes. It returns how many it took:
// 0 if a limit has none.
func (a *Admission) take(max, size int64) (n int64) {
	n = max
	for i, s := range a.messages {
		got := s.Take(n)
		if got == n {
			continue
		}
		untake(a.messages[:i], n-got)
		if n = got; n == 0 {
			return 0
		}
	}
	for i, s := range a.bytes {
		if s.Charge(size) {
			continue
		}
		untake(a.bytes[:i], size)
		untake(a.messages, n)
		return 0
	}
	return n
}

func untake(shares []*sharing.Share, n int64) {
	for _, s := range shares {
		s.Untake(n)
	}
}

// Expired reports whether a strict slot that was taken then may be used no more.
func (a *Admission) Expired(taken Taken) bool {
	if a.paced == nil {
		return false
	}
	until := a.paced.UsableUntil() // before Fresh, since the release of a slot changes it after Fresh
	return !a.paced.Fresh(taken.step()) || time.Since(a.lane.core.start) > until
}

// usableUntil is when the strict slot that was just taken may be used no more, since the engine's
// start; 0 = there is none.
func (a *Admission) usableUntil() time.Duration {
	if a.paced == nil {
		return 0
	}
	return a.paced.UsableUntil()
}
