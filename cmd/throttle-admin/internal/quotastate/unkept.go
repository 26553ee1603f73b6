package quotastate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
)

// An Unkept has the rates in force while no ratekeeper leads.
type Unkept struct {
	Leads   bool    `json:"leads"` // false
	Cluster string  `json:"cluster"`
	Keeper  string  `json:"keeper,omitempty"` // that wrote the last rates; "" if there are none
	Term    int64   `json:"term,omitempty"`
	Age     float64 `json:"age,omitempty"` // of the last rates, in seconds
	Hold    bool    `json:"hold"`          // whether they are in force; else the fallback is
	IDs     []Rate  `json:"ids"`
}

// A Rate is the rate of one throttling id while no ratekeeper leads.
type Rate struct {
	ID          string   `json:"id"`
	Reserved    int64    `json:"reserved"`
	Total       int64    `json:"total"`
	AverageCost float64  `json:"averageCost"` // bytes a message
	InForce     *float64 `json:"inForce"`     // messages a second; null: not limited
	By          string   `json:"by"`          // the origin: rate, reserved, total or shadow
}

// FindUnkept finds the rates in force from the last rates in the permit store.
func FindUnkept(
	ctx context.Context, a *cli.App, store dispatch.PermitStore,
	quotas map[policy.Scope]policy.EffectiveQuota,
) (Unkept, error) {
	scopes := slices.SortedFunc(maps.Keys(quotas), policy.Scope.Compare)
	ids := make([]quota.ID, len(scopes))
	for i, id := range scopes {
		ids[i] = quota.ID(id.String())
	}
	last, now, err := dispatch.Rates(ctx, store, a.Cluster, ids)
	if errors.Is(err, dispatch.ErrInvalidRates) {
		a.Warn("the rates in the permit store are invalid and ignored: %v", err)
	} else if err != nil {
		return Unkept{}, PermitsFault(err)
	}
	u := Unkept{
		Cluster: a.Cluster, Keeper: last.Keeper, Term: last.Term, Hold: !last.Old(now),
		IDs: []Rate{},
	}
	if last.Keeper != "" {
		u.Age = max(0, now-last.Time) // the permit store's clock may have been set back
	}
	for i, id := range scopes {
		q, known := quotas[id], last.Rates[ids[i]] != (quota.Rate{})
		r := Rate{
			ID: id.String(), Reserved: q.Reserved, Total: q.Total,
			AverageCost: last.Average(id), InForce: new(last.Of(id, q, now)), By: "total",
		}
		switch {
		case q.Shadow:
			r.InForce, r.By = nil, "shadow"
		case q.Total == 0: // paused, whatever the last rate was
			r.InForce = new(0.0)
		case u.Hold && known:
			r.By = "rate"
		case !u.Hold && q.Reserved > 0:
			r.By = "reserved"
		}
		u.IDs = append(u.IDs, r)
	}
	return u, nil
}

// Text describes which rates are in force.
func (u Unkept) Text() string {
	const fallback = "each id's reservation or, without one, its total"
	none := "no ratekeeper leads in cluster " + u.Cluster
	last := fmt.Sprintf("%s wrote the last rates in term %d, %s ago",
		u.Keeper, u.Term, output.Seconds(u.Age))
	switch {
	case u.Keeper == "":
		return none + ", and no rates were written in the last hour. In force is " + fallback +
			", divided by the average cost of a message that each replica has measured or, " +
			"without one, by the cost of a written page."
	case u.Hold:
		return fmt.Sprintf("%s. %s; they stay in force for %s more. After that, %s is in force.",
			none, last, output.Seconds(quota.RatesHold.Seconds()-u.Age), fallback)
	}
	return fmt.Sprintf("%s. %s; they have expired. In force is %s, divided by the average cost of "+
		"a message at that time.", none, last, fallback)
}

// Write writes the text and a table of the rates.
func (u Unkept) Write(w *strings.Builder) {
	output.Text(w, "%s", u.Text())
	if len(u.IDs) == 0 {
		return
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, r := range u.IDs {
		inForce := "unlimited"
		if r.InForce != nil {
			inForce = output.Number(*r.InForce)
		}
		rows = append(rows, []string{
			r.ID, fmt.Sprint(r.Reserved), fmt.Sprint(r.Total), output.Number(r.AverageCost),
			inForce, r.By,
		})
	}
	output.Table(w, []string{"ID", "RESERVED", "TOTAL", "AVERAGE", "IN FORCE", "BY"}, rows)
}

// NoRatekeeper returns the error that no ratekeeper leads.
func NoRatekeeper(a *cli.App) error {
	return cli.Hint(
		fmt.Errorf("no ratekeeper leads in cluster %s", a.Cluster),
		"start one: throttle-admin ratekeeper, or throttle.WithRatekeeper beside a Limiter",
	)
}

// NoPermits returns the error that --permits names no shared permit store.
func NoPermits() error {
	return cli.Usage(errors.New("--permits: missing or not shared: " +
		"want the permit store of the ratekeeper, such as --permits redis://127.0.0.1:6379"))
}

// PermitsFault adds a hint to an error of the permit store.
func PermitsFault(err error) error {
	return cli.Hint(fmt.Errorf("permit store: %w", err), "check --permits, and whether it is up")
}

// Decided returns the latest status of the ratekeeper that leads, if one does.
func Decided(
	ctx context.Context, a *cli.App, store dispatch.PermitStore,
) (s ratekeeper.Status, leads bool, err error) {
	if s, leads, err = ratekeeper.Decided(ctx, store, a.Cluster); err != nil {
		err = PermitsFault(err)
	}
	return s, leads, err
}
