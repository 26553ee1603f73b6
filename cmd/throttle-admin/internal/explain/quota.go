package explain

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A quotaExplanation is the calculation of the rate of one throttling id.
type quotaExplanation struct {
	ID       string         `json:"id"`
	Cluster  string         `json:"cluster"`
	Leads    bool           `json:"leads"` // true; see quotastate.Unkept
	Keeper   string         `json:"keeper"`
	Term     int64          `json:"term"`
	Ignored  int            `json:"ignoredZones"`
	Shadow   bool           `json:"shadow,omitempty"`
	Decision quota.Decision `json:"decision"`
	Readers  []quota.Reader `json:"readers,omitempty"` // its load of busy backends
	Why      []string       `json:"why"`
}

// explainQuota explains the rate of one throttling id.
func explainQuota(
	ctx context.Context, a *cli.App, id policy.Scope, store dispatch.PermitStore,
) error {
	s, err := a.Policies(ctx)
	if err != nil {
		return err
	}
	set, _ := policy.NewSet(s.Entries) // usable without its invalid entries
	if err := cli.Readable(s, policy.QuotaSection, id); err != nil {
		return err
	}
	q, ok := set.Quota(id)
	if !ok {
		return cli.Hint(fmt.Errorf("id %q: has no quota", id),
			fmt.Sprintf("throttle-admin quota set %s total=BYTES", id))
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
	i := slices.IndexFunc(decided.Decisions, func(d quota.Decision) bool {
		return string(d.ID) == id.String()
	})
	if i < 0 {
		return cli.Hint(
			fmt.Errorf("id %q: ratekeeper %s has not computed its rate yet", id, decided.Keeper),
			"a new quota takes about a second: run the command again")
	}
	x := quotaExplanation{
		ID: id.String(), Cluster: a.Cluster, Leads: leads, Keeper: decided.Keeper,
		Term: decided.Term, Ignored: int(*set.QuotaSettings().IgnoreZones), Shadow: q.Shadow,
		Decision: decided.Decisions[i],
	}
	for _, r := range decided.Readers {
		if string(r.ID) == x.ID {
			x.Readers = append(x.Readers, r)
		}
	}
	x.addReasons()
	return a.Print(x, func(w *strings.Builder) { x.table(w, q) })
}

// explainUnkept explains the rate of an id while no ratekeeper leads.
func explainUnkept(
	ctx context.Context, a *cli.App, id policy.Scope, q policy.EffectiveQuota,
	store dispatch.PermitStore,
) error {
	u, err := quotastate.FindUnkept(ctx, a, store, map[policy.Scope]policy.EffectiveQuota{id: q})
	if err != nil {
		return err
	}
	return errors.Join(a.Print(u, func(w *strings.Builder) {
		output.Text(w, "%s", u.Text())
		fmt.Fprintln(w)
		writeRate(w, u.IDs[0])
	}), quotastate.NoRatekeeper(a))
}

// writeRate writes the calculation of a rate while no ratekeeper leads.
func writeRate(w *strings.Builder, r quotastate.Rate) {
	reserved, total := float64(r.Reserved), float64(r.Total)
	inForce := map[string]string{
		"rate": "the ratekeeper's last rate", "reserved": "what is reserved", "total": "the total",
		"shadow": "unlimited: the mode is shadow",
	}[r.By]
	if r.InForce != nil {
		inForce = output.Number(*r.InForce) + "/s, " + inForce
	}
	output.Table(w, []string{"VALUE", "CALCULATION"}, [][]string{
		{"quota", fmt.Sprintf("reserved %d, total %d bytes of cost a second", r.Reserved, r.Total)},
		{"cost", output.Number(r.AverageCost) + " bytes a message"},
		{"reserved", quotient(reserved, r.AverageCost, reserved/r.AverageCost)},
		{"total", quotient(total, r.AverageCost, total/r.AverageCost)},
		{"in force", inForce},
	})
}

// quotient writes the division of a throughput by the cost of a message.
func quotient(throughput, cost, rate float64) string {
	return fmt.Sprintf("%s / %s = %s/s",
		output.Number(throughput), output.Number(cost), output.Number(rate))
}

// addReasons describes what determines the rate.
func (x *quotaExplanation) addReasons() {
	d := x.Decision
	say := func(format string, args ...any) { x.Why = append(x.Why, fmt.Sprintf(format, args...)) }
	switch {
	case x.Shadow:
		say("Not limited: its mode is shadow, so that the rate is only computed.")
	case d.Quota.Total == 0:
		say("Paused: its total is 0.")
	case d.Busy && d.Target == d.Reserved:
		say("Limited to what it reserves, because backends are near their targets.")
	case d.Busy:
		say("Limited by backends that are near their targets.")
	case len(d.Zones) > 0 && math.IsNaN(d.Limiting):
		say("Limited by its total alone: a backend is near its target in only %d zones, and that "+
			"many are ignored.", len(d.Zones))
	default:
		say("Limited by its total alone: no backend that it loads is near its target.")
	}
	switch {
	case d.Assumed:
		say("The cost of a message is not known yet: it counts as a written page, %s bytes, until "+
			"backends have reported it for some seconds.", output.Number(d.AverageCost))
	case d.Cost == 0 && d.Rate > 0:
		say("No backend reports costs of this id: a message counts as %s bytes.",
			output.Number(d.AverageCost))
	}
}

func (x *quotaExplanation) table(w *strings.Builder, q policy.EffectiveQuota) {
	d := x.Decision
	output.Text(w, "%s, cluster %s, by ratekeeper %s in term %d", x.ID, x.Cluster, x.Keeper, x.Term)
	fmt.Fprintln(w)
	output.Table(w, []string{"VALUE", "CALCULATION"}, [][]string{
		{"quota", fmt.Sprintf("reserved %d, total %d bytes of cost a second", q.Reserved, q.Total)},
		{"started", output.Number(d.Rate) + "/s by all replicas"},
		{"cost", fmt.Sprintf("%s bytes a second on %d backends, %s a message on average",
			output.Number(d.Cost), d.Backends, output.Number(d.AverageCost))},
		{"reserved", quotient(d.Quota.Reserved, d.AverageCost, d.Reserved)},
		{"desired", quotient(d.Quota.Total, d.AverageCost, d.Desired)},
		{"limiting", x.limiting()},
		{"target", fmt.Sprintf("max(%s, min(%s, %s)) = %s/s", output.Number(d.Reserved),
			output.Number(d.Desired), output.OrNone(d.Limiting), output.Number(d.Target))},
		{"in force", output.Number(d.Smoothed) + "/s, smoothed"},
	})
	fmt.Fprintln(w)
	for _, r := range x.Readers {
		output.Text(w, "backend %s in zone %s: %s bytes of cost a second, which is %.0f %% of its "+
			"load; it can bear %.0f %% of that",
			r.Backend, r.Zone, output.Number(r.Cost), 100*r.Busyness, 100*r.Ratio)
	}
	for _, why := range x.Why {
		output.Item(w, why)
	}
}

// limiting writes the limiting rate and the zones that it comes from.
func (x *quotaExplanation) limiting() string {
	var zones []string
	for _, z := range x.Decision.Zones {
		zones = append(zones, fmt.Sprintf("%s %s/s", z.Zone, output.Number(z.Rate)))
	}
	if len(zones) == 0 {
		return "none"
	}
	return fmt.Sprintf("zones: %s; without the worst %d: %s",
		strings.Join(zones, ", "), x.Ignored, output.OrNone(x.Decision.Limiting))
}
