package pool

import "fmt"

// A Lease is what one replica holds of a pool, on the replica's own clock, which only has to run
// at the store's pace. The zero value but for Replica holds nothing. A divisor is good for ttl/2
// from the moment its heartbeat was sent: a replica that was paused for longer, or has not
// reached the store, spends nothing until it has joined again, as a newcomer with a new name. (A
// policy may let it go on while the permit store is unavailable; that is the caller's choice and
// breaks the bound.)
type Lease struct {
	Replica string  // unique among processes, and drawn again when a process starts
	Stay    int     // how many times this replica has left, or lost its lease
	Answer  Answer  // applied; report it with the next [Heartbeat]
	Until   float64 // seconds, on the replica's clock
}

// At returns the lease as it stands at now: itself while it lasts, else one that holds nothing.
// Use no other for the divisor and for [Heartbeat].
func (l Lease) At(now float64) Lease {
	if l.Answer == (Answer{}) || now < l.Until {
		return l
	}
	return Lease{Replica: l.Replica, Stay: l.Stay + 1}
}

// Member returns the name for [Heartbeat] and [Leave].
func (l Lease) Member() string { return fmt.Sprintf("%s#%d", l.Replica, l.Stay) }

// Renew applies the answer to a heartbeat of the name member that was sent at the time sent. An
// answer to another name, or older than what is applied, changes nothing.
func (l Lease) Renew(member string, a Answer, sent, ttl float64) Lease {
	if member == l.Member() && a.Term >= l.Answer.Term {
		l.Answer, l.Until = a, max(l.Until, sent+ttl*leasePart)
	}
	return l
}

// Left returns the lease after the replica has left: it holds nothing, under a new name. Call it
// before [Leave].
func (l Lease) Left() Lease { return Lease{Replica: l.Replica, Stay: l.Stay + 1} }
