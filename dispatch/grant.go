package dispatch

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// A Grant is the permits that an Acquire came back with. They are charged already, so to forget a
// Grant is safe: it only keeps what was not used. But where maxInFlight is set, its messages are
// in flight until Done. The zero value is a Grant of nothing.
type Grant struct { // an engine.Grant: Done is inlined only if the fields are not one level deeper
	n         int
	admission *engine.Admission
	size      int64
	taken     uint64
}

func grantOf(g engine.Grant) Grant { return Grant{g.N, g.Admission, g.Size, g.Taken} }

func (g *Grant) engine() engine.Grant {
	return engine.Grant{N: g.n, Admission: g.admission, Size: g.size, Taken: g.taken}
}

// N is how many messages may be dispatched.
func (g Grant) N() int { return max(0, g.n) } // an unlimited grant takes over what was asked for

// Limited reports whether the permits are some limit's, so that Done counts.
func (g Grant) Limited() bool { return g.admission != nil }

// InFlight reports whether the messages of the Grant count as in flight until Done, since
// maxInFlight is set.
func (g Grant) InFlight() bool { return g.admission != nil && g.admission.MaxInFlight() > 0 }

// Done settles the Grant: messages is how many were dispatched, bytes their size in all. What was
// not used goes back, unless it is older than two batches of a limit and would come too late for
// that ([Grant.Hold] allows more); more than granted becomes a debt that later reads pay. Only the
// first call counts. Done must be called on the Grant itself, not on a copy.
func (g *Grant) Done(messages int, bytes int64) {
	// Done is inlined: without a limit of bytes, it costs no call.
	if g.admission != nil && (messages != g.n || g.size != 0) {
		g.settle(messages, bytes)
	}
	g.admission = nil
}

func (g *Grant) settle(messages int, bytes int64) {
	of := g.engine()
	of.Settle(messages, bytes)
}

// spent is Done for all that was granted, its bytes being what was charged.
func (g *Grant) spent() { g.Done(g.n, g.size) }

// Hold lets Done give back unused permits for d from now, at most 3 s, instead of until the Grant
// is older than two batches. It is for a caller that acquires permits before it knows whether
// there is a message, as a source does that is polled: d is at most how long its permits wait. The
// first call counts.
//
// A Grant that is held is the one exception to the bound of a limit: others may use what it gives
// back, and the caller may use what it holds, later than their slots. So what is dispatched in any
// interval t is at most rate x (t + d), plus what the bound allows without it. Hold does nothing
// where a limit's sharing.mode is strict, split or groups: there unused permits of an old Grant
// expire.
func (g *Grant) Hold(d time.Duration) {
	of := g.engine()
	of.Hold(d)
	g.taken = of.Taken
}
