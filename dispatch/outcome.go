package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
)

// An Outcome is how the system that a handler protects has answered.
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

// A BusyError says that a protected system was busy. RetryAfter is when it may be asked again, 0
// if it did not say; Err is what went wrong, or nil.
type BusyError struct {
	RetryAfter time.Duration
	Err        error
}

func (e *BusyError) Error() string {
	text := "busy"
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(", to be asked again after %v", e.RetryAfter)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *BusyError) Unwrap() error { return e.Err }

// OutcomeOf is the outcome that a handler's error tells: busy if there is a *[BusyError] in it, ok
// if it is nil, a time-out if a deadline was exceeded or its Timeout method says so, as net.Error
// has one, ignored if the handler was canceled, else failed.
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

// ReportOutcome notes how the system that a handler protects has answered, and when it may be
// asked again, if it said so (else 0). Busy answers lower a limit of the subscription's own, in
// all processes, until they cease: see the policy's group `busy` and docs/slowing-down.md. The
// first report that is good or counts as busy makes that limit; a subscription without reports has
// none. It needs a permit store: while that is unavailable, messages go on. A report costs some
// nanoseconds; any number of goroutines may report at once.
func (s *Subscription) ReportOutcome(o Outcome, retryAfter time.Duration) {
	if s != nil {
		s.handle.Lane.ReportOutcome(resolve.Outcome(o), retryAfter)
	}
}
