package dispatch

import (
	"slices"
	"time"
)

// A plan is the limits that a message of a queue must pass now. It is replaced, never changed;
// a nil plan limits nothing.
type plan struct {
	only     *account   // the one account of a message, if there is nothing else to look at
	messages []*account // these two are parts of one slice, see all
	bytes    []*account
	queue    *queue
	inFlight int64    // messages handed out and not Done; 0 = any number
	paced    *account // the one that is paced strictly, or nil
	slots    *strict  // its own; the account's changes with the policies
	fair     bool     // no limit's sharing is strict, split or groups
	several  bool     // there is more than one account, but none of bytes, and nothing else to look at
	shadow   bool
	paused   bool
	closed   bool
}

// pace chooses the limit by which messages are paced strictly: the slowest of those that are to be. Slots of two lines
// would hardly ever come at the same time; of the others, permits are allocated as ever. In shadow mode nobody waits for a slot.
func (p *plan) pace() {
	var slowest *account
	for _, a := range p.messages {
		if a.limit.strict && !p.shadow && (slowest == nil || a.limit.rate < slowest.limit.rate) {
			slowest = a
		}
	}
	for _, a := range p.messages {
		a.beStrict(a == slowest)
	}
	if p.paced = slowest; slowest != nil {
		p.slots = slowest.strict
	}
}

// join puts the accounts of bytes behind those of messages, in one slice.
func (p *plan) join() {
	n := len(p.messages)
	all := slices.Concat(p.messages, p.bytes)
	p.messages, p.bytes = all[:n], all[n:]
}

// shorten finds out whether a message has a short way.
func (p *plan) shorten() {
	p.fair = p.isFair()
	short := len(p.bytes) == 0 && p.inFlight == 0 && !p.shadow && !p.paused && p.paced == nil
	p.only, p.several = nil, short && len(p.messages) > 1
	if short && len(p.messages) == 1 {
		p.only = p.messages[0]
	}
}

// without returns the plan without the limits that do not apply now, or nil if nothing remains.
func (p *plan) without(exempt func(*account) bool) *plan {
	if slices.ContainsFunc(p.messages, exempt) || slices.ContainsFunc(p.bytes, exempt) {
		rest := *p
		rest.messages = slices.DeleteFunc(slices.Clone(p.messages), exempt)
		rest.bytes = slices.DeleteFunc(slices.Clone(p.bytes), exempt)
		if p.paced != nil && exempt(p.paced) {
			rest.paced = nil
		}
		rest.join()
		rest.shorten()
		p = &rest
	}
	if len(p.messages)+len(p.bytes) == 0 && p.inFlight == 0 {
		return nil
	}
	return p
}

func (p *plan) all() []*account {
	if p == nil {
		return nil
	}
	n := len(p.messages) + len(p.bytes)
	return p.messages[:n:n]
}

// take1 takes a permit of each limit that is not strict, or of none.
func (p *plan) take1(size int64) bool {
	rest := *p
	rest.messages = slices.DeleteFunc(slices.Clone(p.messages), func(a *account) bool { return a == p.paced })
	return rest.take(1, size) == 1
}

// unhindered is how many of so many callers a strict limit allocates slots for: no more than may be in flight, nor, but for
// one, than other limits have permits for.
func (p *plan) unhindered(callers, flying int) int {
	if p.inFlight > 0 {
		callers = min(callers, max(0, int(p.inFlight)-flying))
	}
	for _, a := range p.messages {
		if a != p.paced {
			callers = min(callers, max(1, int(a.held())))
		}
	}
	return callers
}

// until is when what was just taken of strict limits may be used no more, since the Limiter's start; 0 = never.
func (p *plan) until() time.Duration {
	if p.paced == nil {
		return 0
	}
	return time.Duration(p.slots.until.Load())
}

func (p *plan) has(a *account) bool {
	return slices.Contains(p.messages, a) || slices.Contains(p.bytes, a)
}

// take takes up to max permits of every limit, for size bytes, and has as many messages in flight; 0 if one of them is out.
func (p *plan) take(max, size int64) (n int64) {
	n = max
	for i, a := range p.messages {
		got := a.take(n)
		if got == n {
			continue
		}
		for _, b := range p.messages[:i] {
			b.avail.Add(n - got)
		}
		if n = got; n == 0 {
			return 0
		}
	}
	for i, a := range p.bytes {
		if a.charge(size) {
			continue
		}
		for _, b := range p.bytes[:i] {
			b.avail.Add(size)
		}
		for _, b := range p.messages {
			b.avail.Add(n)
		}
		return 0
	}
	if p.inFlight > 0 {
		flying := p.queue.family.takeOff(n, p.inFlight)
		for _, b := range p.messages {
			b.avail.Add(n - flying)
		}
		if n = flying; n == 0 { // another queue of the family was quicker
			for _, b := range p.bytes {
				b.avail.Add(size)
			}
		}
	}
	return n
}

// now is the step of the loop at which a grant is taken.
func (p *plan) now() uint64 { return p.queue.limiter.steps.Load() }
