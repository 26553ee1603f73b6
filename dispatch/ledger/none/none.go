// Package none is the ledger of those who have none: limits that are split among a fixed number of replicas need no
// other. All others go on as their onLedgerLoss says, as if the ledger were always away.
package none

import (
	"context"
	"errors"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// ErrNone is what every booking fails with.
var ErrNone = errors.New("there is no ledger: without one, only limits with sharing: split and a number of replicas are kept")

// A Ledger keeps nothing. The zero value is ready.
type Ledger struct{}

// Book fails.
func (Ledger) Book(_ context.Context, bookings []schedule.Booking) []schedule.Booked {
	booked := make([]schedule.Booked, len(bookings))
	for i := range booked {
		booked[i].Err = ErrNone
	}
	return booked
}

// Timeout is a second, which Book never takes.
func (Ledger) Timeout() time.Duration { return time.Second }

// Update fails.
func (Ledger) Update(context.Context, string, time.Duration, func([]byte, float64) []byte) error {
	return ErrNone
}

// Value fails.
func (Ledger) Value(context.Context, string) ([]byte, float64, error) { return nil, 0, ErrNone }

// State fails.
func (Ledger) State(context.Context, string) (schedule.State, float64, error) {
	return schedule.State{}, 0, ErrNone
}

// Publish does nothing: nobody could read it.
func (Ledger) Publish(context.Context, string, string, []byte, time.Duration) error { return nil }

// Published returns nothing.
func (Ledger) Published(context.Context, string) ([][]byte, error) { return nil, nil }

// Close does nothing.
func (Ledger) Close() error { return nil }
