// Package sharing has the ways to share a limit: one type each, which decides when a replica
// requests permits, how many, and when they are released into the bucket that callers take from.
//
// A mode does no I/O and reads no clock. The engine's loop calls it, sends the requests that it
// returns, and hands it the answers. Times are seconds on the engine's clock unless they are said
// to be the permit store's.
package sharing

import "github.com/dispatchthrottle/throttle/dispatch/permits"

// A Sharing is a way to share a limit.
type Sharing interface {
	// Advance releases the permits that are due.
	Advance(t Time, d Demand)

	// Next returns the request to send now, or nil; nil while one is on its way. If d is zero, all
	// callers were served. A strict share takes it as it is; modes with batches go on with the demand
	// of Advance, since callers come back soon.
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

	// Keep has the share keep what it holds for a new handle until then, if the mode can, and reports
	// whether it does.
	Keep(until float64) bool

	// Reopen ends Keep, and reports whether a new handle takes over the share.
	Reopen() bool

	// Report fills in what people are told.
	Report(r *Report)
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
