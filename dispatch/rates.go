package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// ratesEvery is how often a replica asks whether the rates of quotas have changed, while quotas
// apply to it.
const ratesEvery = 500 * time.Millisecond

// ErrInvalidRates is wrapped by the error of stored rates that are invalid. They count as unknown.
var ErrInvalidRates = errors.New("the stored rates of quotas are invalid")

// Rates reads the rates of throttling ids that are in force in a cluster, and the permit store's
// clock in seconds. The error may wrap ErrInvalidRates; then the other rates are valid.
func Rates(
	ctx context.Context, store PermitStore, cluster string, ids []quota.ID,
) (r quota.Rates, now float64, err error) {
	return nextRates(ctx, store, permits.RatesKey(cluster), ids, quota.Rates{})
}

// nextRates returns the rates of ids after known. It reads the rows of ids that known does not
// have and, if rates have changed, those of all ids. Rows without a head do not count.
func nextRates(
	ctx context.Context, store PermitStore, key string, ids []quota.ID, known quota.Rates,
) (r quota.Rates, now float64, err error) {
	text, now, err := store.Value(ctx, key)
	if err != nil {
		return known, now, err
	}
	r, invalid := quota.ParseRates(text)
	if invalid != nil {
		invalid = fmt.Errorf("%w: %s: %w", ErrInvalidRates, key, invalid)
	}
	if stale := r.Before(known) && !known.Old(now); stale || r.Time <= 0 {
		r = known
	}
	r.Rates = make(map[quota.ID]quota.Rate, len(ids))
	var missing []string
	for _, id := range ids {
		rate, ok := known.Rates[id]
		r.Rates[id] = rate
		if r.Time > 0 && (!ok || !r.Same(known)) {
			missing = append(missing, string(id))
		}
	}
	for names := range slices.Chunk(missing, permits.RowsPage) {
		rows, err := store.Rows(ctx, key, names)
		if err != nil {
			return known, now, err
		}
		for i, row := range rows {
			rate, err := quota.ParseRate(row)
			if err != nil {
				invalid = fmt.Errorf("%w: %s: row %q: %w", ErrInvalidRates, key, names[i], err)
			}
			r.Rates[quota.ID(names[i])] = rate
		}
	}
	return r, now, invalid
}

// followRates puts the rates of ratekeepers in force, while there are quotas.
func (l *Limiter) followRates(ctx context.Context) {
	ticker := time.NewTicker(ratesEvery)
	defer ticker.Stop()
	key := permits.RatesKey(l.cfg.Cluster)
	var known quota.Rates
	var readAt float64 // the permit store's clock when known was read
	for invalid := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ids := l.engine.Quotas()
		if len(ids) == 0 {
			continue
		}
		found, now, err := nextRates(ctx, l.cfg.Permits, key, ids, known)
		if err != nil && !errors.Is(err, ErrInvalidRates) {
			continue // its limits have logged an outage of the same permit store
		}
		if err != nil && err.Error() != invalid {
			invalid = err.Error()
			l.log.Warn("rates of quotas are ignored", "error", err)
		}
		old := known.Old(readAt)
		if known = found; !old && known.Old(now) && known.Time > 0 {
			l.log.Warn("no ratekeeper has published rates lately: "+
				"each quota continues at its reserved rate or, without one, at its total",
				"for", quota.RatesHold)
		}
		readAt = now
		l.engine.ApplyRates(known, now)
	}
}
