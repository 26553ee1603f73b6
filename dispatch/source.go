package dispatch

import (
	"context"
	"iter"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A PolicySource provides a Limiter's policies.
type PolicySource interface {
	// Snapshots yields all present policies, and again after each change, until ctx ends or the
	// consumer stops. After an error the source continues by itself, and the Limiter keeps the
	// last snapshot. It also keeps it, and reports why, if another Identity follows, or an earlier
	// revision: one of a lower Epoch or, of the same one, a lower Revision. It follows a plain
	// snapshot in any case, and warns once of one without an Identity that is not plain.
	Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error]
}

// A PermitStore keeps the schedules and records of all limits, and answers requests on its own
// clock. Any number of goroutines may use it at once.
type PermitStore interface {
	// Do answers the requests in place, those for the same key in order. Each request fails alone,
	// with its Err. Do returns within the store's own timeout. It sends no request twice; a
	// request that failed may have taken effect.
	Do(ctx context.Context, requests []*permits.Request)

	// Timeout is the longest time that Do takes; 0 means that it answers without waiting.
	Timeout() time.Duration

	// Update replaces the value under key by the result of f, in one atomic step; nil means no
	// value. f gets the old value and the store's clock in seconds. f is called again if another
	// process was faster, and must not change old. The value expires ttl after the last Update.
	// Update returns within the store's own timeout; an Update that failed may have taken effect.
	Update(
		ctx context.Context, key string, ttl time.Duration, f func(old []byte, now float64) []byte,
	) error

	// Value returns the value that Update keeps under key, nil if there is none, and the store's
	// clock in seconds.
	Value(ctx context.Context, key string) (value []byte, now float64, err error)

	// SetRows replaces up to [permits.RowsPage] rows that belong to the value under key, each only
	// while that value is head; done reports whether it was for all. A nil row is removed. All
	// rows expire together: ttl after the last call, or with the value.
	SetRows(
		ctx context.Context, key string, head []byte, ttl time.Duration, rows map[string][]byte,
	) (done bool, err error)

	// Rows returns the rows with these names, up to [permits.RowsPage]; a missing one is nil.
	// RowNames returns the names of all rows, in no particular order.
	Rows(ctx context.Context, key string, names []string) (rows [][]byte, err error)
	RowNames(ctx context.Context, key string) (names []string, err error)

	// State returns the schedule of the limit with that key, for diagnosis. Its Inc is 0 if there
	// is none. now is the store's clock, in seconds like the times of the state.
	State(ctx context.Context, key string) (s schedule.State, now float64, err error)

	// Publish keeps a replica's status record of up to [permits.MaxRecord] bytes for ttl. Published
	// returns the records of a cluster that have not expired, in no particular order: up to
	// [permits.MaxRecords], and up to [permits.MaxRecordsBytes] in all. Others are left out. It
	// reads them in pages, each within the store's own timeout. Publishers returns the names of the
	// replicas with such a record, up to [permits.MaxRecords], and PublishedBy the records of some.
	Publish(ctx context.Context, cluster, replica string, status []byte, ttl time.Duration) error
	Published(ctx context.Context, cluster string) ([][]byte, error)
	Publishers(ctx context.Context, cluster string) ([]string, error)
	PublishedBy(ctx context.Context, cluster string, replicas []string) ([][]byte, error)

	// Close closes the connection. A second call does nothing.
	Close() error
}

// A Waker is a PermitStore that wakes the callers in the queue of a strict limit (the policy's
// `sharing.wait: queue`) whose turn comes earlier than expected. With any other store, or if a
// wake-up is lost, a caller asks again at the time that it was told.
type Waker interface {
	// Wakes calls woken with the name of each waiter of a process whose turn has come, until ctx
	// ends. A waiter's name is the name of its process, "|", and more.
	Wakes(ctx context.Context, process string, woken func(waiter string)) error
}
