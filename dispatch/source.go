package dispatch

import (
	"context"
	"iter"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A PolicySource is where a Limiter's policies come from.
type PolicySource interface {
	// Snapshots yields all policies as they are now, and again after each change, until ctx ends
	// or the consumer stops. After an error the source goes on by itself, and the Limiter keeps
	// the last snapshot.
	Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error]
}

// A PermitStore keeps the schedules and records of all limits, and answers requests on its own
// clock. Its methods may be used by any number of goroutines.
type PermitStore interface {
	// Do answers the requests in place, those for the same key in order; each fails alone, with
	// its Err. Do returns by the store's own timeout at the latest, and sends nothing twice: a
	// request that failed may or may not have been made.
	Do(ctx context.Context, requests []*permits.Request)

	// Timeout is the longest that Do takes; 0 = it answers at once, without waiting for anything.
	Timeout() time.Duration

	// Update replaces the value under key by what f returns for it, in one atomic step; nil is no
	// value. f gets the store's clock in seconds, is called again if another process was faster,
	// and must not change old. The value expires ttl after the last Update. Update returns by the
	// store's own timeout at the latest; if it fails, it may or may not have been made.
	Update(
		ctx context.Context, key string, ttl time.Duration, f func(old []byte, now float64) []byte,
	) error

	// Value returns what Update keeps under key, nil if there is nothing, and the store's clock in
	// seconds.
	Value(ctx context.Context, key string) (value []byte, now float64, err error)

	// State returns the schedule of the limit with that key, for people to look at; its Inc is 0
	// if there is none. now is the store's clock, in the seconds of the state's times.
	State(ctx context.Context, key string) (s schedule.State, now float64, err error)

	// Publish keeps a replica's status record for ttl; Published returns those of a cluster that
	// have not expired, in no order.
	Publish(ctx context.Context, cluster, replica string, status []byte, ttl time.Duration) error
	Published(ctx context.Context, cluster string) ([][]byte, error)

	// Close ends the connection; a second call does nothing.
	Close() error
}

// A Waker is a PermitStore that wakes the waiters in the queue of a strict limit (the policy's
// `sharing.wait: queue`) whose turn comes earlier than expected. With another store, or if a
// wake-up is lost, a waiter asks again when it was told to.
type Waker interface {
	// Wakes calls woken with the name of each waiter of a process whose turn has come, until ctx
	// ends. A waiter's name is that of its process, "|", and more.
	Wakes(ctx context.Context, process string, woken func(waiter string)) error
}
