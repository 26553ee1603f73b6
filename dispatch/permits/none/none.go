// Package none is the permit store of programs without one. Limits that are split among a fixed
// number of replicas need no other. All other limits apply their onOutage, as if the permit store
// were always unavailable.
package none

import (
	"context"
	"errors"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// ErrNone is the error of every request.
var ErrNone = errors.New("no permit store: without one, only limits with sharing.mode split " +
	"and sharing.replicas set are kept")

// A Store keeps nothing. The zero value is ready.
type Store struct{}

// Do fails each request with ErrNone.
func (Store) Do(_ context.Context, requests []*permits.Request) {
	for _, r := range requests {
		r.Err = ErrNone
	}
}

// Timeout is a second, which Do never takes.
func (Store) Timeout() time.Duration { return time.Second }

// Update fails.
func (Store) Update(context.Context, string, time.Duration, func([]byte, float64) []byte) error {
	return ErrNone
}

// Value fails.
func (Store) Value(context.Context, string) ([]byte, float64, error) { return nil, 0, ErrNone }

// SetRows fails.
func (Store) SetRows(
	context.Context, string, []byte, time.Duration, map[string][]byte,
) (bool, error) {
	return false, ErrNone
}

// Rows fails.
func (Store) Rows(context.Context, string, []string) ([][]byte, error) { return nil, ErrNone }

// RowNames fails.
func (Store) RowNames(context.Context, string) ([]string, error) { return nil, ErrNone }

// State fails.
func (Store) State(context.Context, string) (schedule.State, float64, error) {
	return schedule.State{}, 0, ErrNone
}

// Publish does nothing.
func (Store) Publish(context.Context, string, string, []byte, time.Duration) error { return nil }

// Published returns nothing.
func (Store) Published(context.Context, string) ([][]byte, error) { return nil, nil }

// Publishers returns nothing.
func (Store) Publishers(context.Context, string) ([]string, error) { return nil, nil }

// PublishedBy returns nothing.
func (Store) PublishedBy(context.Context, string, []string) ([][]byte, error) { return nil, nil }

// Close does nothing.
func (Store) Close() error { return nil }
