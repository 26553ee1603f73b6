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

// A PermitStore keeps the schedules of all limits, and runs schedule.Allocate on them on its own clock.
// Its methods may be used by any number of goroutines.
type PermitStore interface {
	// Allocate answers each allocation, in order. It returns by its own time-out at the latest, and
	// repeats nothing: an allocation that failed may or may not have been made.
	Allocate(ctx context.Context, allocations []schedule.Allocation) []schedule.Allocated

	// Timeout is the longest that Allocate takes.
	Timeout() time.Duration

	// Update replaces what is kept under key by what f makes of it, in one atomic step; nil is nothing. f gets the
	// permit store's clock, may be called again if somebody else was faster, and must not change what it is given. What is
	// kept goes ttl after the last Update. Update returns by the permit store's own time-out at the latest; if it fails, it may or may not
	// have been made.
	Update(ctx context.Context, key string, ttl time.Duration, f func(old []byte, now float64) []byte) error

	// Value returns what Update keeps under key, nil if there is nothing, and the permit store's clock.
	Value(ctx context.Context, key string) (value []byte, now float64, err error)

	// State returns the schedule under key, for people to look at; its Inc is 0 if there
	// is none. The now that comes with it is the permit store's clock, in the seconds of the state's times.
	State(ctx context.Context, key string) (s schedule.State, now float64, err error)

	// Publish keeps what a replica says about itself for ttl; Published returns what
	// is alive in a cluster, in no order.
	Publish(ctx context.Context, cluster, replica string, status []byte, ttl time.Duration) error
	Published(ctx context.Context, cluster string) ([][]byte, error)

	// Close ends the connection; a second call does nothing.
	Close() error
}

// A Waker is a PermitStore that tells those who queue for slots (the policy's `wait: queue`) when their turn has come before it was
// expected. With another, or if a word is lost, they come when it was.
type Waker interface {
	// Wakes calls woken with the name of each waiter of a process whose turn has come, until ctx
	// ends. The name of a waiter is that of his process, "|", and more.
	Wakes(ctx context.Context, process string, woken func(waiter string)) error
}
