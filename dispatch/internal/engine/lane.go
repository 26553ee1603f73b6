package engine

import (
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Lane is the callers of one subscription in this process whose messages have one owner.
type Lane struct {
	// Each call reads these, which are in one cache line.
	admission atomic.Pointer[Admission] // the limits that apply now; nil = none
	quota     atomic.Pointer[quota.ID]  // whose quota applies; nil = none
	queue     queue                     // begins with its length; see its lock

	// Callers use these without a lock, too.
	touched        atomic.Bool  // the loop steps the lane soon
	covered        atomic.Bool  // the next step is soon enough for a caller that comes now
	active         atomic.Bool  // permits are held, wanted or on their way
	beyondInFlight atomic.Int64 // messages beyond a maxInFlight in shadow mode, all time
	sizes          averageSize

	// These do not change.
	core         *core
	subscription *subscription
	id           resolve.LaneID

	// Engine.mu guards these. It is locked before the queue, if both are.
	matches   policy.Matches // of the topic, by the policies in force when it was found
	shares    shares
	handles   handles
	due       dueTime
	endedAt   time.Time // when the last handle was closed
	successor *Lane     // has taken over the shares
}

// Admission returns the limits that apply now; nil = none. It is one atomic load.
func (l *Lane) Admission() *Admission { return l.admission.Load() }

// Waited reports whether callers wait.
func (l *Lane) Waited() bool { return l.queue.length.Load() > 0 }

// Quota is the throttling id whose quota applies, nil if none does. It is one atomic load.
func (l *Lane) Quota() *quota.ID { return l.quota.Load() }

// CountOutcome counts how the system that handlers of the subscription protect has answered, if
// that outcome counts. retryAfter is when it may be asked again, 0 = unknown. first reports whether
// it is the first one: then Engine.SlowDown is to be called.
func (l *Lane) CountOutcome(o resolve.Outcome, retryAfter time.Duration) (first bool) {
	return l.subscription.outcomes.count(o, retryAfter)
}
