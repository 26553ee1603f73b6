package engine

import (
	"math"
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

// An averageSize is the running average of messages' sizes, which unknown ones are charged at. Any
// goroutine may use it.
type averageSize struct{ bits atomic.Uint64 }

// average is in bytes; 1 KiB before anything is known.
func (s *averageSize) average() float64 {
	if bits := s.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 1024
}

// learn moves the average by a sixteenth a message.
func (s *averageSize) learn(messages int, bytes int64) {
	mean := float64(bytes) / float64(messages)
	average := mean
	if old := s.bits.Load(); old != 0 {
		o := math.Float64frombits(old)
		average = o + (mean-o)*(1-math.Pow(15.0/16, float64(messages)))
	}
	s.bits.Store(math.Float64bits(max(1, average)))
}
