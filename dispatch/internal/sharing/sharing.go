// Package sharing has the ways to share a limit: one type each, which decides when a replica
// requests permits, how many, and when they are released into the bucket that callers take from.
//
// A mode does no I/O and reads no clock. The engine's loop calls it, sends the requests that it
// returns, and hands it the answers. Times are seconds on the engine's clock unless they are said
// to be the permit store's.
package sharing

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Sharing is a way to share a limit.
type Sharing interface {
	// Advance releases the permits that are due.
	Advance(t Time, d Demand)

	// Next returns the request to send now, or nil; nil while one is on its way.
	Next(now float64, d Demand) *permits.Request

	// Answered takes the answer of a request in, or its failure. It arrived at done.
	Answered(r *permits.Request, done, now float64)

	// WakeAt is when the next step is due, +Inf if no step is needed until a caller comes or an
	// answer arrives.
	WakeAt(now float64) float64

	// Covered reports whether the step at WakeAt, or at the next answer, is soon enough for a
	// caller that comes now.
	Covered(now float64) bool

	// Drain returns the request that gives everything back, nil if there is nothing to give back.
	// It is called in place of Next once the limit no longer applies to the lane.
	Drain(now float64) *permits.Request

	// Idle reports whether nothing is held, requested or owed to the store.
	Idle() bool

	// NextPermit is when a refused caller may find a permit.
	NextPermit(now float64) float64

	// Report fills in what people are told.
	Report(r *Report)
}

// A Time is the time of a step of the loop.
type Time struct {
	Now  float64
	Step uint64  // counts the loop's steps
	Late float64 // how far the loop runs behind schedule, seconds
}

// sinceStart is the time since the engine's start of a time on its clock, which starts at 1.
func sinceStart(at float64) time.Duration { return time.Duration((at - 1) * 1e9) }

// A Demand is what the callers of a share want at this moment.
type Demand struct {
	Waiting  float64 // permits asked for by callers that this limit holds up
	Callers  int     // callers that wait; of a strict limit, and may have a message in flight
	Hindered int     // strict: those of them for which another limit has no permit now
	Anybody  bool    // a caller waits for the message, whichever limit holds it up
	Lacks    bool    // strict: another limit has no permit at all
	Try      bool    // strict: a caller wants a slot that is free now, or none
}

// A Report is what people are told of a share.
type Report struct {
	Use     float64 // permits a second that callers take, measured recently
	Allowed float64 // the line's rate now, permits a second: lower on a ramp or after busy answers
	Share   float64 // that this replica may count on, permits a second; 0 = unknown
	Queued  bool    // strict: in the line's queue
	Pool    int     // split: replicas by which the limit is divided
	Group   string  // groups: the worker group of this process
}

// An Env is what the shares of one engine have in common.
type Env struct {
	Replica  string         // the name of this process in what it publishes
	Process  string         // a unique name, by which the permit store wakes this process's callers
	Rand     *rand.Rand     // for jitter and names
	Timeout  func() float64 // of the permit store's Do, seconds; 0 = it answers at once
	Replicas atomic.Int64   // of the cluster, when they were last counted; 0 = never

	// Serve has the loop step a share's lane at once: it has got a slot of another lane.
	Serve func(s *Share, now float64)
	turns map[string]*turns // by key

	closed map[string][]*fair // by key: shares that keep what they hold for a new handle

	Closing bool // everything goes back to the permit store, and not to another share
}

// New returns a share of a limit that begins with nothing.
func New(env *Env, limit resolve.Limit, now float64) *Share {
	if env.turns == nil {
		env.turns, env.closed = map[string]*turns{}, map[string][]*fair{}
	}
	s := &Share{env: env, Limit: limit, Reason: limit.Reason}
	s.Bucket.init()
	s.usage.init(now)
	switch limit.Mode {
	case policy.Strict:
		s.Mode = newStrict(s)
	case policy.Split:
		s.Mode = newSplit(s)
	case policy.Groups:
		s.Mode = newGroups(s)
	default:
		s.Mode = newFair(s)
	}
	return s
}
