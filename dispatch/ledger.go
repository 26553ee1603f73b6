package dispatch

import (
	"context"
	"iter"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A PolicySource is where a Limiter's policies come from.
type PolicySource interface {
	// Snapshots yields all policies as they are now, and again after each change, until
	// ctx ends or the consumer stops. An error is passing: the source goes on by itself,
	// and the Limiter goes on with the last snapshot.
	Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error]
}

// A Booking is one request to a limit's schedule.
type Booking struct {
	Key     string // of the limit, from LimitKey
	Request schedule.Request
}

// A Booked is the answer to a Booking; Reply counts only if Err is nil.
type Booked struct {
	Reply schedule.Reply
	Err   error
}

// A Ledger keeps the schedules of all limits, and runs schedule.Book on them on its own clock.
// Its methods may be used by any number of goroutines.
type Ledger interface {
	// Book answers each booking, in order, in one trip. It returns by its own time-out at the
	// latest, and repeats nothing: a booking that failed may or may not have been made.
	Book(ctx context.Context, bookings []Booking) []Booked

	// Timeout is the longest that Book takes.
	Timeout() time.Duration

	// State returns the schedule of a limit, for people to look at; ok is false if there is none.
	// The now that comes with it is the ledger's clock, in the same seconds as the state's times.
	State(ctx context.Context, key string) (s schedule.State, now float64, ok bool, err error)

	// Publish keeps a replica's status for ttl; Statuses returns those of a cluster that are alive.
	Publish(ctx context.Context, cluster string, s Status, ttl time.Duration) error
	Statuses(ctx context.Context, cluster string) ([]Status, error)

	// Close ends the connection; a second call does nothing.
	Close() error
}
