package engine

import "time"

// A Grant is the permits that a caller got; see dispatch.Grant. It has four fields, so that it is
// passed in registers.
type Grant struct {
	N         int
	Admission *Admission // nil: nothing is limited, or the grant is settled
	Size      int64      // bytes charged, in all; at least 1 if Done has something to settle
	Taken     Taken
}

// A Taken says when a Grant was taken: at a step of the loop or, after Hold, until when its permits
// can be given back.
type Taken uint64

// onHold marks a Taken that is a time, nanoseconds since the engine's start.
const onHold Taken = 1 << 63

func heldUntil(until time.Duration) Taken { return onHold | Taken(until) }

func (t Taken) held() bool { return t&onHold != 0 }

func (t Taken) step() uint64 { return uint64(t) } // without Hold

func (t Taken) until() time.Duration { return time.Duration(t &^ onHold) } // with Hold

// Step is the step of the loop at which a grant is taken.
func (a *Admission) Step() Taken { return Taken(a.steps.Load()) }
