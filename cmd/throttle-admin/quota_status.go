package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
)

func newQuotaStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what the ratekeeper has decided last, for all ids",
		Long: `Show what the ratekeeper has decided last, for all ids: messages a second, and the cost of one on average.
Target is max(reserved, min(desired, limiting)). One id's calculation: throttle-admin explain tag:NAME

While no ratekeeper leads, it shows what replicas obey meanwhile: the rates that one wrote last or, a minute
later, what is reserved or, if nothing is, the total.

Exit status: 0 a ratekeeper leads, 1 none does, or something failed, 2 misused.`,
		Example: `  throttle-admin quota status --permits redis://127.0.0.1:6379
  throttle-admin quota status -o json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			permits, err := a.openPermits()
			if err != nil {
				return err
			}
			if permits == nil {
				return noPermits()
			}
			defer func() { _ = permits.Close() }() // nothing was written
			s, leads, err := a.decided(cmd.Context(), permits)
			switch {
			case err != nil:
				return err
			case leads:
				err := a.print(statusView{leads, s}, func(w *strings.Builder) { statusTable(w, s) })
				if a.store == "" {
					return err
				}
				if err := a.withQuotas(cmd.Context(), a.warnOverCommitted); err != nil { // what was decided is shown nevertheless
					a.warn("whether quotas reserve more than the capacity is not known: %v", err)
				}
				return err
			}
			show := func(quotas map[policy.Scope]policy.Quota) error {
				u, err := a.unkept(cmd.Context(), permits, quotas)
				if err != nil {
					return err
				}
				return a.print(u, u.write)
			}
			if a.store == "" {
				a.warn("what each id may do follows from its quota: set --policies to see it")
				err = show(nil)
			} else {
				err = a.withQuotas(cmd.Context(), func(s configstore.Snapshot, set *policy.Set) error {
					return errors.Join(show(set.Quotas()), a.warnOverCommitted(s, set))
				})
			}
			return errors.Join(err, a.noRatekeeper())
		},
	}
}

// warnOverCommitted says from when on quotas reserve too much.
func (a *app) warnOverCommitted(s configstore.Snapshot, _ *policy.Set) error {
	now := time.Now()
	if over := overCommitted(s.Entries, now); over != nil {
		a.warn("%s", over.say(now))
	}
	return nil
}

// A statusView is what a ratekeeper that leads has decided last.
type statusView struct {
	Leads bool `json:"leads"`
	ratekeeper.Status
}

// An unkeptView is what replicas obey while no ratekeeper leads.
type unkeptView struct {
	Leads   bool     `json:"leads"` // false
	Cluster string   `json:"cluster"`
	Keeper  string   `json:"keeper,omitempty"` // who wrote the rates; none: the permit store has none
	Term    int64    `json:"term,omitempty"`
	Age     float64  `json:"age,omitempty"` // of the rates, seconds
	Hold    bool     `json:"hold"`          // whether they hold; else what is reserved or, if nothing is, the total
	IDs     []obeyed `json:"ids"`
}

// An obeyed is the rate of one throttling id while no ratekeeper leads.
type obeyed struct {
	ID          string   `json:"id"`
	Reserved    int64    `json:"reserved_throughput"`
	Total       int64    `json:"total_throughput"`
	AverageCost float64  `json:"averageCost"` // of a message, bytes
	InForce     *float64 `json:"inForce"`     // messages a second; null: any number
	By          string   `json:"by"`          // what it follows from: rate, reserved, total, or shadow
}

// unkept finds what replicas obey by the last rates in the permit store.
func (a *app) unkept(ctx context.Context, permits dispatch.PermitStore, quotas map[policy.Scope]policy.Quota) (unkeptView, error) {
	text, now, err := permits.Value(ctx, dispatch.RatesKey(a.cluster))
	if err != nil {
		return unkeptView{}, permitsFault(err)
	}
	var found dispatch.Rates
	if err := json.Unmarshal(text, &found); len(text) > 0 && err != nil {
		a.warn("the rates in the permit store make no sense, and nobody obeys them: %s: %v", dispatch.RatesKey(a.cluster), err)
		found = dispatch.Rates{}
	}
	u := unkeptView{Cluster: a.cluster, Keeper: found.Keeper, Term: found.Term, Hold: !found.Old(now), IDs: []obeyed{}}
	if found.Keeper != "" {
		u.Age = max(0, now-found.Time) // that clock may have gone back
	}
	for _, id := range slices.SortedFunc(maps.Keys(quotas), policy.Scope.Compare) {
		q := quotas[id]
		_, used := found.Rates[quota.ID(id.String())]
		o := obeyed{ID: id.String(), Reserved: q.Reserved, Total: q.Total, AverageCost: found.Average(id), InForce: new(found.Of(id, q, now)), By: "total"}
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

// say says in plain words what replicas obey.
func (u unkeptView) say() string {
	const fallback = "what is reserved or, if nothing is, the total"
	switch {
	case u.Keeper == "":
		return fmt.Sprintf("no ratekeeper leads in cluster %s, and none has written rates in the last hour: replicas obey %s, by the average costs that they remember or, where they remember none, a written page a message", u.Cluster, fallback)
	case u.Hold:
		return fmt.Sprintf("no ratekeeper leads in cluster %s: the rates that %s wrote in term %d, %s ago, hold for %s more, then %s", u.Cluster, u.Keeper, u.Term, seconds(u.Age), seconds(dispatch.RatesHold.Seconds()-u.Age), fallback)
	}
	return fmt.Sprintf("no ratekeeper leads in cluster %s: the rates that %s wrote in term %d, %s ago, hold no more, and replicas obey %s, by the average costs of then", u.Cluster, u.Keeper, u.Term, seconds(u.Age), fallback)
}

func (u unkeptView) write(w *strings.Builder) {
	writeText(w, "%s", u.say())
	if len(u.IDs) == 0 {
		return
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, o := range u.IDs {
		inForce := "any"
		if o.InForce != nil {
			inForce = number(*o.InForce)
		}
		rows = append(rows, []string{o.ID, fmt.Sprint(o.Reserved), fmt.Sprint(o.Total), number(o.AverageCost), inForce, o.By})
	}
	writeTable(w, []string{"ID", "RESERVED", "TOTAL", "AVERAGE", "IN FORCE", "BY"}, rows)
}

// noRatekeeper is the fault that no ratekeeper leads, and what to start.
func (a *app) noRatekeeper() error {
	return &hintError{fmt.Errorf("no ratekeeper leads in cluster %s now", a.cluster), "start one: throttle-admin ratekeeper, or throttle.WithRatekeeper in a program that has a Limiter"}
}

func noPermits() error {
	return misuse(errors.New("--permits is not set, or one process's own: say where the ratekeeper writes, such as --permits redis://127.0.0.1:6379"))
}

func permitsFault(err error) error {
	return &hintError{fmt.Errorf("the permit store: %w", err), "check --permits, and whether it is up"}
}

// decided returns what the ratekeeper that leads has decided last, if one does.
func (a *app) decided(ctx context.Context, permits dispatch.PermitStore) (s ratekeeper.Status, leads bool, err error) {
	if s, leads, err = ratekeeper.Decided(ctx, permits, a.cluster); err != nil {
		err = permitsFault(err)
	}
	return s, leads, err
}

func orNone(rate float64) string {
	if math.IsNaN(rate) {
		return "-"
	}
	return number(rate)
}

func statusTable(w *strings.Builder, s ratekeeper.Status) {
	writeText(w, "ratekeeper %s, term %d; %d replicas and backends report, %d ids are tracked", s.Keeper, s.Term, s.Replicas, s.Tracked)
	fmt.Fprintln(w)
	var rows [][]string
	for _, d := range s.Decisions {
		busy := ""
		switch {
		case d.Shadow:
			busy = "shadow: limits nothing"
		case d.Busy:
			busy = "busy"
		}
		rows = append(rows, []string{string(d.ID), number(d.Rate), number(d.AverageCost), number(d.Reserved), number(d.Desired), orNone(d.Limiting), number(d.Target), number(d.Smoothed), busy})
	}
	writeTable(w, []string{"ID", "RATE", "AVERAGE", "RESERVED", "DESIRED", "LIMITING", "TARGET", "IN FORCE", ""}, rows)
	for _, fault := range s.Refused {
		writeText(w, "refused: %s", fault)
	}
	if s.LeftOut > 0 {
		writeText(w, "%d ids of the backends' reports are not followed one by one: their cost counts among the others'", s.LeftOut)
	}
}
