package engine

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
)

// An Admission is the limits that a message of a lane must pass now. It is replaced, never
// changed; nil limits nothing.
type Admission struct {
	Only *sharing.Share // the share of a message's one limit, if there is nothing else to look at

	all       []*sharing.Share // these are parts of it, in this order: the shadow limits of messages,
	messages  []*sharing.Share // those enforced, which a message must pass,
	bytes     []*sharing.Share // those enforced of bytes, and the shadow limits of bytes
	bytesFrom int              // index in all of the first limit of bytes
	lane      *Lane
	steps     *atomic.Uint64 // of the loop

	maxInFlight int64          // messages handed out and not Done; 0 = any number
	anyInFlight bool           // those beyond maxInFlight are counted, and handed out all the same
	paced       *sharing.Share // the one whose mode is strict, or nil
	several     bool           // there are several limits of messages, and nothing else to look at
	holds       bool           // permits may be given back after a Hold
	shadow      bool           // a limit is in shadow mode, or maxInFlight is
	paused      bool
	closed      bool
}

// admit returns the admission of a lane whose shares are those of what was resolved.
func admit(l *Lane, messages, bytes []*sharing.Share, r *resolve.Subscription) *Admission {
	a := &Admission{
		lane: l, steps: &l.engine.steps,
		maxInFlight: r.MaxInFlight, anyInFlight: r.ShadowInFlight, paused: r.Paused,
	}
	a.set(messages, bytes)
	return a
}

// closedAdmission fails every call.
func closedAdmission(l *Lane) *Admission {
	return &Admission{lane: l, steps: &l.engine.steps, closed: true}
}

// set sets the shares, and what follows from them.
func (a *Admission) set(messages, bytes []*sharing.Share) {
	shadow := func(s *sharing.Share) bool { return s.Limit.Shadow }
	enforced := func(s *sharing.Share) bool { return !s.Limit.Shadow }
	part := func(shares []*sharing.Share, is func(*sharing.Share) bool) []*sharing.Share {
		from := len(a.all)
		for _, s := range shares {
			if is(s) {
				a.all = append(a.all, s)
			}
		}
		return a.all[from:]
	}
	a.all = make([]*sharing.Share, 0, len(messages)+len(bytes)) // so that the parts stay parts of it
	part(messages, shadow)
	a.messages = part(messages, enforced)
	a.bytesFrom = len(a.all)
	a.bytes = part(bytes, enforced)
	part(bytes, shadow)
	a.paced, a.holds = nil, true
	for _, s := range a.all {
		if s.Paced() {
			a.paced = s
		}
		a.holds = a.holds && s.Holds()
	}
	a.shadow = len(a.enforced()) < len(a.all) || a.maxInFlight > 0 && a.anyInFlight
	short := len(a.messages) == len(a.all) && a.maxInFlight == 0 && !a.paused && a.paced == nil
	a.Only, a.several = nil, short && len(messages) > 1
	if short && len(messages) == 1 {
		a.Only = messages[0]
	}
}

// ofMessages and ofBytes are the limits of messages and of bytes, those in shadow mode included.
func (a *Admission) ofMessages() []*sharing.Share { return a.all[:a.bytesFrom] }
func (a *Admission) ofBytes() []*sharing.Share    { return a.all[a.bytesFrom:] }

// enforced are the limits that a message must pass.
func (a *Admission) enforced() []*sharing.Share {
	from := a.bytesFrom - len(a.messages)
	return a.all[from : a.bytesFrom+len(a.bytes)]
}

// boundsInFlight reports whether no more than maxInFlight messages may be in flight.
func (a *Admission) boundsInFlight() bool { return a.maxInFlight > 0 && !a.anyInFlight }

// without returns the admission without the limits that do not apply now, or nil if nothing
// remains.
func (a *Admission) without(exempt func(*sharing.Share) bool) *Admission {
	if slices.ContainsFunc(a.all, exempt) {
		rest := *a
		messages := slices.DeleteFunc(slices.Clone(a.ofMessages()), exempt)
		rest.set(messages, slices.DeleteFunc(slices.Clone(a.ofBytes()), exempt))
		a = &rest
	}
	if len(a.all) == 0 && a.maxInFlight == 0 {
		return nil
	}
	return a
}

func (a *Admission) has(s *sharing.Share) bool { return slices.Contains(a.all, s) }

// Step is the step of the loop at which a grant is taken.
func (a *Admission) Step() uint64 { return a.steps.Load() }

// TakeSeveral takes up to n permits of every limit, if there are several of messages and nothing
// else to look at, and returns how many it got.
func (a *Admission) TakeSeveral(n int64) int64 {
	if !a.several || n <= 0 || n > MaxPermits || a.lane.Waited() {
		return 0
	}
	return a.take(n, 0)
}

// Paced reports whether a limit's mode is strict.
func (a *Admission) Paced() bool { return a.paced != nil }

// MaxInFlight is how many messages may be handed out and not Done; 0 = any number.
func (a *Admission) MaxInFlight() int64 { return a.maxInFlight }

// take takes up to max permits of every limit and charges size bytes, and has as many messages in
// flight; 0 if one of them is out. No lock is needed.
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
	if a.boundsInFlight() {
		inFlight := a.lane.of.inFlight.tryAcquire(n, a.maxInFlight)
		untake(a.messages, n-inFlight)
		if n = inFlight; n == 0 { // another lane of the subscription was quicker
			untake(a.bytes, size)
			return 0
		}
	}
	if a.shadow {
		a.passShadow(n, size)
	}
	return n
}

// passShadow takes the permits of limits in shadow mode for n messages with size bytes, as far as
// they have some. The rest passes all the same, and is counted.
func (a *Admission) passShadow(n, size int64) {
	through := false
	for _, s := range a.all[:a.bytesFrom-len(a.messages)] {
		if missing := n - s.Take(n); missing > 0 {
			s.LetThrough(missing, missing)
			through = true
		}
	}
	for _, s := range a.all[a.bytesFrom+len(a.bytes):] {
		if !s.Charge(size) {
			s.LetThrough(n, size)
			through = true
		}
	}
	if a.maxInFlight > 0 && a.anyInFlight {
		inFlight := a.lane.of.inFlight.n.Add(n)
		a.lane.beyondInFlight.Add(min(n, max(0, inFlight-a.maxInFlight)))
	}
	if through { // as demand
		a.lane.engine.touch(a.lane, false)
	}
}

func untake(shares []*sharing.Share, n int64) {
	for _, s := range shares {
		s.Untake(n)
	}
}

// startable is how many of n callers may have a message in flight now.
func (a *Admission) startable(n int) int {
	if a.boundsInFlight() {
		n = min(n, max(0, int(a.maxInFlight-a.lane.of.inFlight.n.Load())))
	}
	return n
}

// hindered is the number of n callers for which a limit other than the strict one has no permit.
// One of them does not count: it asks, so that the strict limit is used.
func (a *Admission) hindered(n int) (hindered int) {
	for _, s := range a.messages {
		if s != a.paced {
			hindered = max(hindered, n-max(1, int(s.Held())))
		}
	}
	return hindered
}

// lacksOther reports whether a limit other than the strict one has no permit. No lock is needed.
func (a *Admission) lacksOther() bool {
	return slices.ContainsFunc(a.enforced(), func(s *sharing.Share) bool {
		return s != a.paced && s.Empty()
	})
}

// usableUntil is when the strict slot that was just taken may be used no more, since the engine's
// start; 0 = there is none.
func (a *Admission) usableUntil() time.Duration {
	if a.paced == nil {
		return 0
	}
	return a.paced.UsableUntil()
}
