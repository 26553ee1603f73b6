package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A quotaExplanation is how the rate of one throttling id was found.
type quotaExplanation struct {
	ID       string         `json:"id"`
	Cluster  string         `json:"cluster"`
	Leads    bool           `json:"leads"` // true; see quotastate.Unkept
	Keeper   string         `json:"keeper"`
	Term     int64          `json:"term"`
	Ignored  int            `json:"ignoredZones"`
	Shadow   bool           `json:"shadow,omitempty"`
	Decision quota.Decision `json:"decision"`
	Readers  []quota.Reader `json:"readers,omitempty"` // its part of busy backends
	Why      []string       `json:"why"`
}

// explainQuota shows the whole calculation of one throttling id.
func explainQuota(ctx context.Context, a *cli.App, id policy.Scope, store dispatch.PermitStore) error {
	return quotastate.With(ctx, a, func(s configstore.Snapshot, set *policy.Set) error {
		if err := cli.Readable(s, id); err != nil {
			return err
		}
		q, ok := set.Quota(id)
		if !ok {
			return cli.Hint(fmt.Errorf("id %q: has no quota: nothing limits it", id), fmt.Sprintf("throttle-admin quota set %s total_throughput BYTES", id))
		}
		if store == nil {
			return quotastate.NoPermits()
		}
		decided, leads, err := quotastate.Decided(ctx, a, store)
		switch {
		case err != nil:
			return err
		case !leads:
			return explainUnkept(ctx, a, id, q, store)
		}
		i := slices.IndexFunc(decided.Decisions, func(d quota.Decision) bool { return string(d.ID) == id.String() })
		if i < 0 {
			return cli.Hint(fmt.Errorf("id %q: the ratekeeper %s has not decided on it yet", id, decided.Keeper), "its quota may be a second old: ask again")
		}
		x := quotaExplanation{ID: id.String(), Cluster: a.Cluster, Leads: leads, Keeper: decided.Keeper, Term: decided.Term, Ignored: set.Ratekeeping().IgnoreZones, Shadow: q.Shadow, Decision: decided.Decisions[i]}
		for _, r := range decided.Readers {
			if string(r.ID) == x.ID {
				x.Readers = append(x.Readers, r)
			}
		}
		x.explain()
		return a.Print(x, func(w *strings.Builder) { x.table(w, q) })
	})
}

// explainUnkept shows the rate of one throttling id that replicas obey while no ratekeeper leads.
func explainUnkept(ctx context.Context, a *cli.App, id policy.Scope, q policy.Quota, store dispatch.PermitStore) error {
	u, err := quotastate.FindUnkept(ctx, a, store, map[policy.Scope]policy.Quota{id: q})
	if err != nil {
		return err
	}
	return errors.Join(a.Print(u, func(w *strings.Builder) {
		output.Text(w, "%s", u.Say())
		fmt.Fprintln(w)
		explainObeyed(u.IDs[0], w)
	}), quotastate.NoRatekeeper(a))
}

// explain shows how the rate follows from the quota.
func explainObeyed(o quotastate.Obeyed, w *strings.Builder) {
	inForce := map[string]string{
		"rate": "as the ratekeeper found it", "reserved": "what is reserved", "total": "the total", "shadow": "any number: its quotaMode is shadow",
	}[o.By]
	if o.InForce != nil {
		inForce = output.Number(*o.InForce) + "/s, " + inForce
	}
	output.Table(w, []string{"WHAT", "HOW"}, [][]string{
		{"quota", fmt.Sprintf("reserved %d, total %d bytes of cost a second", o.Reserved, o.Total)},
		{"cost", output.Number(o.AverageCost) + " bytes a message"},
		{"reserved", fmt.Sprintf("%d / %s = %s/s", o.Reserved, output.Number(o.AverageCost), output.Number(float64(o.Reserved)/o.AverageCost))},
		{"total", fmt.Sprintf("%d / %s = %s/s", o.Total, output.Number(o.AverageCost), output.Number(float64(o.Total)/o.AverageCost))},
		{"in force", inForce},
	})
}

// explain says in plain words what decides.
func (x *quotaExplanation) explain() {
	d := x.Decision
	say := func(format string, args ...any) { x.Why = append(x.Why, fmt.Sprintf(format, args...)) }
	switch {
	case x.Shadow:
		say("It is not limited: its quotaMode is shadow, so that the rate is only computed.")
	case d.Quota.Total == 0:
		say("It is paused: its total is 0.")
	case d.Busy && d.Target == d.Reserved:
		say("It goes on at what it has reserved: backends near their targets can bear less.")
	case d.Busy:
		say("It is limited by backends that are near their targets.")
	case len(d.Zones) > 0 && math.IsNaN(d.Limiting):
		say("Nothing but its total limits it: only %d zones have a backend near its target, and as many are ignored.", len(d.Zones))
	default:
		say("Nothing but its total limits it: no backend that it loads is near its target.")
	}
	switch {
	case d.Assumed:
		say("Nobody knows what a message costs: it counts as a written page, %s bytes, until backends have reported it for some seconds.", output.Number(d.AverageCost))
	case d.Cost == 0 && d.Rate > 0:
		say("No backend reports what it costs now: a message counts as %s bytes.", output.Number(d.AverageCost))
	}
}

func (x *quotaExplanation) table(w *strings.Builder, q policy.Quota) {
	d := x.Decision
	output.Text(w, "%s, cluster %s, by ratekeeper %s in term %d", x.ID, x.Cluster, x.Keeper, x.Term)
	fmt.Fprintln(w)
	limiting, zones := "none", []string{}
	for _, z := range d.Zones {
		zones = append(zones, fmt.Sprintf("%s %s/s", z.Zone, output.Number(z.Rate)))
	}
	if len(zones) > 0 {
		limiting = fmt.Sprintf("zones: %s; the worst %d ignored: %s", strings.Join(zones, ", "), x.Ignored, output.OrNone(d.Limiting))
	}
	rows := [][]string{
		{"quota", fmt.Sprintf("reserved %d, total %d bytes of cost a second", q.Reserved, q.Total)},
		{"begun", output.Number(d.Rate) + "/s by all replicas"},
		{"cost", fmt.Sprintf("%s bytes a second on %d backends, %s a message on average", output.Number(d.Cost), d.Backends, output.Number(d.AverageCost))},
		{"reserved", fmt.Sprintf("%s / %s = %s/s", output.Number(d.Quota.Reserved), output.Number(d.AverageCost), output.Number(d.Reserved))},
		{"desired", fmt.Sprintf("%s / %s = %s/s", output.Number(d.Quota.Total), output.Number(d.AverageCost), output.Number(d.Desired))},
		{"limiting", limiting},
		{"target", fmt.Sprintf("max(%s, min(%s, %s)) = %s/s", output.Number(d.Reserved), output.Number(d.Desired), output.OrNone(d.Limiting), output.Number(d.Target))},
		{"in force", output.Number(d.Smoothed) + "/s, smoothed"},
	}
	output.Table(w, []string{"WHAT", "HOW"}, rows)
	fmt.Fprintln(w)
	for _, r := range x.Readers {
		output.Text(w, "backend %s in zone %s: %s bytes of cost a second, %.0f %% of its load, of which it can bear %.0f %%", r.Backend, r.Zone, output.Number(r.Cost), 100*r.Busyness, 100*r.Ratio)
	}
	for _, why := range x.Why {
		output.Item(w, why)
	}
}

// goesOn notes that somebody goes on an id's account, and reports whether that has a quota.
func (x *explanation) goesOn(id policy.Scope) bool {
	_, ok := x.set.Quota(id)
	if ok && !slices.Contains(x.quotas, id) {
		x.quotas = append(x.quotas, id)
	}
	return ok
}

// explainQuotas asks the permit store how the quotas stand.
func (x *explanation) explainQuotas(ctx context.Context, store dispatch.PermitStore) error {
	for _, r := range x.Readers {
		if id, err := policy.ParseScope(r.Owner); err == nil && r.Owner != "" {
			x.goesOn(id)
		}
	}
	if len(x.quotas) == 0 {
		return nil
	}
	text, now, err := store.Value(ctx, permits.RatesKey(x.Cluster))
	if err != nil {
		return err
	}
	var found dispatch.Rates
	_ = json.Unmarshal(text, &found) // what makes no sense is none
	x.unkept = found.Old(now)
	for _, id := range x.quotas {
		v := limitView{Limit: dispatch.ReasonQuota, Scope: id.String(), Key: permits.QuotaKey(x.Cluster, id)}
		if q, _ := x.set.Quota(id); !q.Shadow {
			v.Rate = found.Of(id, q, now)
		}
		state, now, err := store.State(ctx, v.Key)
		if err != nil {
			return err
		}
		if state.Inc != 0 && state.Rate < busy.Max { // which has no bound: it is only counted
			v.InForce, v.Revision = state.Rate, state.Rev
			v.Ahead = max(0, state.Tail-now)
			v.Allocated = v.Ahead * state.Rate
		}
		x.Limits = append(x.Limits, v)
	}
	return nil
}
