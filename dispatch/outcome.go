package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
)

// An Outcome is the answer of the system that a handler protects.
type Outcome int

// The outcomes. Only busy answers slow a subscription down, and those that the policy's field
// `busy.outcomes` counts as busy.
const (
	OutcomeOK      = Outcome(resolve.OK)
	OutcomeBusy    = Outcome(resolve.Busy)    // such as HTTP 429 or 503, gRPC RESOURCE_EXHAUSTED
	OutcomeFailed  = Outcome(resolve.Failed)  // for another reason; may count as busy
	OutcomeTimeout = Outcome(resolve.Timeout) // no answer in time; may count as busy
	OutcomeIgnored = Outcome(resolve.Ignored) // says nothing about the system
)

// A BusyError reports that a protected system was busy. RetryAfter is the time until it may be
// called again, 0 if it is unknown. Err is the cause, or nil.
type BusyError struct {
	RetryAfter time.Duration
	Err        error
}

func (e *BusyError) Error() string {
	text := "busy"
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(", retry after %v", e.RetryAfter)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *BusyError) Unwrap() error { return e.Err }

// OutcomeOf returns the outcome of a handler's error:
//
//   - busy if the error wraps a *[BusyError], with its RetryAfter
//   - ok if it is nil
//   - timeout if a deadline was exceeded, or if its Timeout method returns true, as with net.Error
//   - ignored if the handler was canceled
//   - failed for any other error
func OutcomeOf(err error) (o Outcome, retryAfter time.Duration) {
	if e, ok := errors.AsType[*BusyError](err); ok {
		return OutcomeBusy, e.RetryAfter
	}
	switch {
	case err == nil:
		return OutcomeOK, 0
	case errors.Is(err, context.DeadlineExceeded):
		return OutcomeTimeout, 0
	case errors.Is(err, context.Canceled):
		return OutcomeIgnored, 0
	}
	if e, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && e.Timeout() {
		return OutcomeTimeout, 0
	}
	return OutcomeFailed, 0
}

// ReportOutcome reports the answer of the system that a handler protects, and when the system may
// be called again (0 if unknown). Busy answers lower a limit of the subscription alone, in all
// processes, until they cease: see the policy's group `busy` and docs/slowing-down.md. The first
// report that is good or counts as busy creates that limit. The limit needs a permit store; while
// the store is unavailable, messages continue. A report costs some nanoseconds. Any number of
// goroutines may report at once.
func (s *Subscription) ReportOutcome(o Outcome, retryAfter time.Duration) {
	if s != nil && s.handle.Lane.CountOutcome(resolve.Outcome(o), retryAfter) {
		s.limiter.engine.SlowDown(s.handle.Lane)
	}
}
