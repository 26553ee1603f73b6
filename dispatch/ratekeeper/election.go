package ratekeeper

import (
	"context"
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// An Elector elects one of several candidates as the leader.
type Elector interface {
	// Elect calls lead each time the candidate is elected, with a context that ends with the term
	// and the term's number, which is higher than all earlier ones. It returns nil when ctx ends,
	// and otherwise the error that stopped it; the caller may try again.
	Elect(
		ctx context.Context, election, candidate string, lead func(ctx context.Context, term int64),
	) error
}

// byPermits elects through the record of rates in the permit store: a candidate that finds a record
// older than takeover starts the next term. If two do so at once, the first to write leads.
type byPermits struct{ *Ratekeeper }

func (l byPermits) Elect(
	ctx context.Context, _, _ string, lead func(ctx context.Context, term int64),
) error {
	text, now, err := l.Permits.Value(ctx, permits.RatesKey(l.Cluster))
	if err != nil {
		return err
	}
	before, _ := quota.ParseRates(text) // an invalid record has no leader
	if math.Abs(now-before.Time) > takeover.Seconds() || before.Time == 0 {
		// The clock keeps terms rising when the record is lost.
		lead(ctx, max(before.Term+1, int64(now*1000)))
	}
	return nil
}

// takeover is the age of the rates after which another candidate takes over. A leader resigns when
// it has failed to find rates for that long.
const takeover = 5 * time.Second
