package dispatch

import (
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
)

// A Grant is the permits that one Acquire got. They are charged already, so a forgotten Grant is
// safe: only its unused permits are lost. With maxInFlight, however, its messages are in flight
// until Done. The zero value is an empty Grant.
type Grant struct { // an engine.Grant: Done is inlined only if the fields are not one level deeper
	n         int
	admission *engine.Admission
	size      int64
	taken     engine.Taken
}

func grantOf(g engine.Grant) Grant { return Grant{g.N, g.Admission, g.Size, g.Taken} }

func (g *Grant) engine() engine.Grant {
	return engine.Grant{N: g.n, Admission: g.admission, Size: g.size, Taken: g.taken}
}

// N returns how many messages may be dispatched.
func (g Grant) N() int { return max(0, g.n) } // without a limit, n is what was requested

// Limited reports whether the permits are those of a limit, so that Done has an effect.
func (g Grant) Limited() bool { return g.admission != nil }

// InFlight reports whether the messages of the Grant count as in flight until Done, because
// maxInFlight is set.
func (g Grant) InFlight() bool { return g.admission != nil && g.admission.MaxInFlight() > 0 }

// Expired reports whether the permit is of a limit with strict sharing and may be used no more: its
// time is over (sharing.permitExpiry), or the next slot has been released. It is for callers that
// keep a Grant before they dispatch its message: they call Done(0, 0) then, and Acquire again.
// Acquire returns no Grant that has expired. After Done, Expired returns false.
func (g *Grant) Expired() bool {
	return g.admission != nil && g.admission.Expired(g.taken)
}

// Done settles the Grant: messages is the number of dispatched messages, bytes their total size.
// Unused permits go back, unless the Grant is older than two batches of a limit, when they would
// come too late ([Grant.Hold] allows more time). Permits used beyond those granted become a debt
// that later reads pay. Only the first call counts. Call Done on the Grant itself, not on a copy.
func (g *Grant) Done(messages int, bytes int64) {
	// Done is inlined: without a limit of bytes, it costs no call.
	if g.admission != nil && (messages != g.n || g.size != 0) {
		g.settle(messages, bytes)
	}
	g.admission = nil
}

func (g *Grant) settle(messages int, bytes int64) {
	whole := g.engine()
	whole.Settle(messages, bytes)
}

// spent is Done for all granted messages, with the bytes that were charged.
func (g *Grant) spent() { g.Done(g.n, g.size) }

// Split takes the permits of some messages out of g, which were read in one batch and are settled
// apart: [Grant.Done] of the part counts for them alone. bytes is their exact size, and charged. g
// keeps the rest, which Done(0, 0) gives back. Call Split before Done and Hold. The parts of a
// Grant without a limit have none.
func (g *Grant) Split(messages int, bytes int64) Grant {
	whole := g.engine()
	part := whole.Split(messages, bytes)
	g.n, g.size = whole.N, whole.Size
	return grantOf(part)
}

// Hold lets Done give back unused permits for d from now, at most 3 s, instead of until the Grant
// is older than two batches. It is for callers that acquire permits before they know whether there
// is a message, such as a source that is polled; d is the longest time for which its permits wait.
// Only the first call counts.
//
// A Grant that is held is the one exception to the bound of a limit: the permits that it gives
// back, and those that its caller uses, are used later than their slots. In any interval t, at most
// rate x (t + d) is dispatched, plus what the bound allows without Hold. This is so however many
// Grants are held, and however often permits are given back and held again: what a process holds
// for longer than d, in one Grant or in several, does not all go back. Hold does nothing if the
// sharing.mode of a limit is strict, split or groups: there, unused permits of an old Grant expire.
func (g *Grant) Hold(d time.Duration) {
	whole := g.engine()
	whole.Hold(d)
	g.taken, g.size = whole.Taken, whole.Size
}
