package quotastate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
)

// An Unkept is what replicas obey while no ratekeeper leads.
type Unkept struct {
	Leads   bool     `json:"leads"` // false
	Cluster string   `json:"cluster"`
	Keeper  string   `json:"keeper,omitempty"` // who wrote the rates; none: the permit store has none
	Term    int64    `json:"term,omitempty"`
	Age     float64  `json:"age,omitempty"` // of the rates, seconds
	Hold    bool     `json:"hold"`          // whether they hold; else what is reserved or, if nothing is, the total
	IDs     []Obeyed `json:"ids"`
}

// An Obeyed is the rate of one throttling id while no ratekeeper leads.
type Obeyed struct {
	ID          string   `json:"id"`
	Reserved    int64    `json:"reserved_throughput"`
	Total       int64    `json:"total_throughput"`
	AverageCost float64  `json:"averageCost"` // of a message, bytes
	InForce     *float64 `json:"inForce"`     // messages a second; null: any number
	By          string   `json:"by"`          // what it follows from: rate, reserved, total, or shadow
}

// FindUnkept finds what replicas obey by the last rates in the permit store.
func FindUnkept(ctx context.Context, a *cli.App, store dispatch.PermitStore, quotas map[policy.Scope]policy.Quota) (Unkept, error) {
	text, now, err := store.Value(ctx, permits.RatesKey(a.Cluster))
	if err != nil {
		return Unkept{}, PermitsFault(err)
	}
	var found dispatch.Rates
	if err := json.Unmarshal(text, &found); len(text) > 0 && err != nil {
		a.Warn("the rates in the permit store make no sense, and nobody obeys them: %s: %v", permits.RatesKey(a.Cluster), err)
		found = dispatch.Rates{}
	}
	u := Unkept{Cluster: a.Cluster, Keeper: found.Keeper, Term: found.Term, Hold: !found.Old(now), IDs: []Obeyed{}}
	if found.Keeper != "" {
		u.Age = max(0, now-found.Time) // that clock may have gone back
	}
	for _, id := range slices.SortedFunc(maps.Keys(quotas), policy.Scope.Compare) {
		q := quotas[id]
		_, used := found.Rates[quota.ID(id.String())]
		o := Obeyed{ID: id.String(), Reserved: q.Reserved, Total: q.Total, AverageCost: found.Average(id), InForce: new(found.Of(id, q, now)), By: "total"}
		switch {
		case q.Shadow:
			o.InForce, o.By = nil, "shadow"
		case q.Total == 0: // which pauses, whatever rate was found before
			o.InForce = new(0.0)
		case u.Hold && used:
			o.By = "rate"
		case !u.Hold && q.Reserved > 0:
			o.By = "reserved"
		}
		u.IDs = append(u.IDs, o)
	}
	return u, nil
}

// Say says in plain words what replicas obey.
func (u Unkept) Say() string {
	const fallback = "what is reserved or, if nothing is, the total"
	switch {
	case u.Keeper == "":
		return fmt.Sprintf("no ratekeeper leads in cluster %s, and none has written rates in the last hour: replicas obey %s, by the average costs that they remember or, where they remember none, a written page a message", u.Cluster, fallback)
	case u.Hold:
		return fmt.Sprintf("no ratekeeper leads in cluster %s: the rates that %s wrote in term %d, %s ago, hold for %s more, then %s", u.Cluster, u.Keeper, u.Term, output.Seconds(u.Age), output.Seconds(dispatch.RatesHold.Seconds()-u.Age), fallback)
	}
	return fmt.Sprintf("no ratekeeper leads in cluster %s: the rates that %s wrote in term %d, %s ago, hold no more, and replicas obey %s, by the average costs of then", u.Cluster, u.Keeper, u.Term, output.Seconds(u.Age), fallback)
}

// Write writes it for people.
func (u Unkept) Write(w *strings.Builder) {
	output.Text(w, "%s", u.Say())
	if len(u.IDs) == 0 {
		return
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, o := range u.IDs {
		inForce := "any"
		if o.InForce != nil {
			inForce = output.Number(*o.InForce)
		}
		rows = append(rows, []string{o.ID, fmt.Sprint(o.Reserved), fmt.Sprint(o.Total), output.Number(o.AverageCost), inForce, o.By})
	}
	output.Table(w, []string{"ID", "RESERVED", "TOTAL", "AVERAGE", "IN FORCE", "BY"}, rows)
}

// NoRatekeeper is the fault that no ratekeeper leads, and what to start.
func NoRatekeeper(a *cli.App) error {
	return cli.Hint(fmt.Errorf("no ratekeeper leads in cluster %s now", a.Cluster), "start one: throttle-admin ratekeeper, or throttle.WithRatekeeper in a program that has a Limiter")
}

// NoPermits is the fault that no permit store is named.
func NoPermits() error {
	return cli.Usage(errors.New("--permits is not set, or one process's own: say where the ratekeeper writes, such as --permits redis://127.0.0.1:6379"))
}

// PermitsFault is the fault that the permit store does not answer.
func PermitsFault(err error) error {
	return cli.Hint(fmt.Errorf("the permit store: %w", err), "check --permits, and whether it is up")
}

// Decided returns what the ratekeeper that leads has decided last, if one does.
func Decided(ctx context.Context, a *cli.App, permits dispatch.PermitStore) (s ratekeeper.Status, leads bool, err error) {
	if s, leads, err = ratekeeper.Decided(ctx, permits, a.Cluster); err != nil {
		err = PermitsFault(err)
	}
	return s, leads, err
}
