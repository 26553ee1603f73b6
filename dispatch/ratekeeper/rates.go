package ratekeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

const (
	// ratesTTL is how long the permit store keeps rates that are not renewed. The next leader
	// starts from them.
	ratesTTL = time.Hour

	// compareEvery is how often the rows in the permit store are compared with those written.
	compareEvery = time.Minute

	// minChange is the change of a rate or of an average, as a part of it, that is written.
	minChange = 0.001
)

// written is what a term has written: the head and the rows in the permit store.
type written struct {
	head     []byte // that names this term; nil: none yet, or another one has replaced it
	any      bool   // a head was written
	rows     map[quota.ID]quota.Rate
	changed  bool      // rows have changed since the head was written
	compared time.Time // when the rows were last compared; zero = not yet
}

var errReplaced = errors.New("ratekeeper: another process has replaced the head of the rates")

// write puts the rates of decisions in force, unless a later term or a later epoch has written. It
// writes what has changed, and returns the permit store's time.
func (t *term) write(
	ctx context.Context, epoch int64, decisions []quota.Decision,
) (at float64, err error) {
	next := quota.Rates{Epoch: epoch, Term: t.number, Keeper: t.Name}
	if t.written.head == nil {
		// The time stays, so that no older row comes into force.
		if err := t.put(ctx, &next, func(before quota.Rates, _ float64) float64 {
			return before.Time
		}); err != nil {
			return 0, err
		}
	}
	changes := t.changes(decisions)
	compare := time.Since(t.written.compared) >= compareEvery
	if compare {
		if err := t.compare(ctx, changes, decisions); err != nil {
			return 0, err
		}
	}
	if err := t.setRows(ctx, changes); err != nil {
		return 0, err
	}
	if compare {
		t.written.compared = time.Now()
	}
	err = t.put(ctx, &next, func(_ quota.Rates, now float64) float64 { return now })
	return next.Time, err
}

// put replaces the head by next, at the time that timeOf returns for the head before.
func (t *term) put(
	ctx context.Context, next *quota.Rates, timeOf func(before quota.Rates, now float64) float64,
) error {
	var refused, invalid error
	var head []byte
	lost := false
	update := func(old []byte, now float64) []byte {
		before, _ := quota.ParseRates(old) // an invalid head is replaced
		if refused = t.fence(before, *next, now); refused != nil {
			return old
		}
		lost = t.written.any && len(old) == 0
		next.Time, next.Version = timeOf(before, now), before.Version
		if t.written.changed {
			next.Version++
		}
		if head, invalid = json.Marshal(next); invalid != nil {
			return old
		}
		return head
	}
	err := t.Permits.Update(ctx, permits.RatesKey(t.Cluster), ratesTTL, update)
	if err = errors.Join(err, invalid, refused); err != nil {
		t.written.head = nil // it may have been written all the same
		return err
	}
	t.written.head, t.written.any, t.written.changed = head, true, false
	if lost { // rows are probably lost, too
		t.written.compared = time.Time{}
	}
	return nil
}

// fence returns why next must not replace before; nil if it may.
func (t *term) fence(before, next quota.Rates, now float64) error {
	mine := before.Keeper == next.Keeper && before.Term == next.Term
	switch {
	case before.Old(now):
		return nil
	case before.Epoch > next.Epoch:
		return fmt.Errorf("ratekeeper: %s has written rates by policies that were adopted later "+
			"(epoch %d, here %d): use the same policy store, or different cluster names",
			before.Keeper, before.Epoch, next.Epoch)
	case !mine && (t.written.any && before.Epoch == next.Epoch || !before.Before(next)):
		return errFenced // another leader has written since this term did, or its term is later
	}
	return nil
}

// changes returns the rates to write for decisions. The zero Rate stands for a row to remove.
func (t *term) changes(decisions []quota.Decision) map[quota.ID]quota.Rate {
	changes := map[quota.ID]quota.Rate{}
	decided := make(map[quota.ID]bool, len(decisions))
	for _, d := range decisions {
		if d.Assumed {
			continue
		}
		decided[d.ID] = true
		was, ok := t.written.rows[d.ID]
		if !ok || differs(d.Smoothed, was.Rate) || differs(d.AverageCost, was.Average) {
			changes[d.ID] = quota.Rate{Rate: d.Smoothed, Average: d.AverageCost}
		}
	}
	for id := range t.written.rows {
		if !decided[id] {
			changes[id] = quota.Rate{}
		}
	}
	return changes
}

func differs(a, b float64) bool {
	return !(math.Abs(a-b) <= minChange*max(math.Abs(a), math.Abs(b))) // also true for NaN
}

// compare adds to changes the rows that were lost, and those that no decision is for.
func (t *term) compare(
	ctx context.Context, changes map[quota.ID]quota.Rate, decisions []quota.Decision,
) error {
	names, err := t.Permits.RowNames(ctx, permits.RatesKey(t.Cluster))
	if err != nil {
		return err
	}
	stored := make(map[quota.ID]bool, len(names))
	for _, name := range names {
		stored[quota.ID(name)] = true
	}
	for _, d := range decisions {
		if !d.Assumed && !stored[d.ID] {
			changes[d.ID] = quota.Rate{Rate: d.Smoothed, Average: d.AverageCost}
		} else if !d.Assumed {
			delete(stored, d.ID)
		}
	}
	for id := range stored {
		changes[id] = quota.Rate{}
	}
	return nil
}

// setRows writes rates in pages, at least one: each renews the time to live of all rows.
func (t *term) setRows(ctx context.Context, rates map[quota.ID]quota.Rate) error {
	ids := slices.Sorted(maps.Keys(rates))
	for first := true; first || len(ids) > 0; first = false {
		page := ids[:min(len(ids), permits.RowsPage)]
		ids = ids[len(page):]
		rows := make(map[string][]byte, len(page))
		for _, id := range page {
			if rates[id] == (quota.Rate{}) {
				rows[string(id)] = nil
				continue
			}
			text, err := json.Marshal(rates[id])
			if err != nil {
				return fmt.Errorf("ratekeeper: the rate of %s is invalid: %w", id, err)
			}
			rows[string(id)] = text
		}
		t.written.changed = t.written.changed || len(page) > 0
		key := permits.RatesKey(t.Cluster)
		done, err := t.Permits.SetRows(ctx, key, t.written.head, ratesTTL, rows)
		if err != nil {
			return err
		} else if !done {
			t.written.head = nil
			return errReplaced
		}
		for _, id := range page {
			t.written.rows[id] = rates[id]
			if rates[id] == (quota.Rate{}) {
				delete(t.written.rows, id)
			}
		}
	}
	return nil
}
