// Package explain has the command that says what holds for a topic or a quota, and why.
package explain

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this family.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newExplainCommand(a)}
}

// An explanation says what holds for a topic, or one subscription of it, and why.
type explanation struct {
	Topic        string       `json:"topic"`
	Subscription string       `json:"subscription,omitempty"`
	Cluster      string       `json:"cluster"`
	Identity     string       `json:"identity"`
	Revision     int64        `json:"revision"` // of the policies
	Fields       []fieldView  `json:"fields"`
	Live         bool         `json:"live"` // whether the permit store was asked
	Limits       []limitView  `json:"limits,omitempty"`
	Readers      []readerView `json:"readers,omitempty"`
	Why          []string     `json:"why"`
	effective    policy.Effective
	from         func(field string) string // the scope that sets it, as a shell reads it
	set          *policy.Set
	quotas       []policy.Scope // the throttling ids with a quota on whose account it goes
	unkept       bool           // no ratekeeper finds their rates now
}

// A fieldView is one field of the effective policy.
type fieldView struct {
	Field   string    `json:"field"`
	Value   string    `json:"value"`
	From    string    `json:"from,omitempty"` // empty: the default
	Expires time.Time `json:"expires,omitzero"`
}

// A limitView is one budget, as the permit store has it.
type limitView struct {
	Limit     dispatch.Reason `json:"limit"`
	Scope     string          `json:"scope"`
	Key       string          `json:"key"`
	Rate      float64         `json:"rate"`                // a second, by the policies; of a quota, by the ratekeeper, 0 = not known
	InForce   float64         `json:"inForce,omitempty"`   // a second, by the last allocation; 0 = nobody allocates
	Ahead     float64         `json:"ahead,omitempty"`     // seconds that are allocated
	Allocated float64         `json:"allocated,omitempty"` // permits in them
	Revision  int64           `json:"revision,omitempty"`  // of the rate in force
	Sharing   policy.Sharing  `json:"sharing,omitempty"`   // of what keeps no line of slots in the permit store: split or groups
	Ramp      bool            `json:"ramp,omitempty"`      // whether the rate in force still rises to Rate

	Strict      bool  `json:"strict,omitempty"`
	Reserved    int64 `json:"reserved,omitempty"` // of a strict limit: starts in the future
	MaxReserved int64 `json:"maxReserved,omitempty"`
	Queued      int   `json:"queued,omitempty"` // waiters in its queue, with `wait: queue`
}

// A readerView is one subscription in one replica.
type readerView struct {
	Replica     string  `json:"replica"`
	Revision    int64   `json:"revision"`
	Version     string  `json:"version"`
	PolicyError string  `json:"policyError,omitempty"`
	Share       float64 `json:"share"` // of the topic's messages or, if these are not limited, of its first limit
	Use         float64 `json:"use"`
	Rate        float64 `json:"rate"` // of that limit, as the replica knows it
	State       string  `json:"state"`
	dispatch.SubscriptionStats
}

func newExplainCommand(a *cli.App) *cobra.Command {
	var subscription string
	cmd := &cobra.Command{
		Use:   "explain TOPIC|tenant:NAME|tag:NAME",
		Short: "Show what holds for a topic or a quota, where it comes from, and why readers wait or do not",
		Long: `Show what holds for a topic: the effective policy and the scope that each field comes from; how far its
budgets are allocated; which replicas share them; and why they wait or do not. The latter need a --permits.
Of a throughput quota it shows the whole calculation of its rate for now; while no ratekeeper leads, the rate
that replicas obey meanwhile, with exit status 1.`,
		Example: `  throttle-admin explain kafka://public/default/orders
  throttle-admin explain kafka://public/default/orders --subscription billing -o json
  throttle-admin explain tag:reports`,
		Args: cli.Args("TOPIC or ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := a.ScopeOf(cmd, args[0])
			permits, permitsErr := a.OpenPermits()
			if err := errors.Join(cli.Usage(err), permitsErr); err != nil {
				return err
			}
			if permits != nil {
				defer func() { _ = permits.Close() }() // nothing was written
			}
			if scope.Kind == policy.TagKind || scope.Kind == policy.TenantKind {
				return explainQuota(cmd.Context(), a, scope, permits)
			}
			if scope.Kind != policy.TopicKind && scope.Kind != policy.SubscriptionKind {
				return cli.Usage(&policy.FieldError{Field: "topic", Value: args[0], Reason: "is no topic: write its URL, such as kafka://tenant/namespace/name, or tenant:NAME or tag:NAME for a quota"})
			}
			return a.WithStore(cmd.Context(), func(ctx context.Context, store configstore.Store) error {
				s, err := a.List(ctx, store)
				if err != nil {
					return err
				}
				now := time.Now()
				x := explainPolicy(s, a.Cluster, scope.Topic, scope.Subscription)
				var liveErr error
				if permits != nil {
					if liveErr = x.explainLive(ctx, permits, scope.Topic); liveErr != nil {
						liveErr = cli.Hint(fmt.Errorf("the permit store: %w", liveErr), "check --permits, and whether it is up; what is shown of the policies holds")
					}
				}
				x.explainWhy(s, scope, liveErr)
				return errors.Join(a.Print(x, func(w *strings.Builder) { x.table(w, now) }), liveErr)
			})
		},
	}
	cli.AddSubscription(cmd, &subscription)
	return cmd
}

const ownPrefix = "subscription." // of the fields of a subscription's further budget

// explainPolicy says what the policies come to.
func explainPolicy(s configstore.Snapshot, cluster string, topic policy.Topic, name string) *explanation {
	set, _ := policy.NewSet(s.Entries) // is usable without what is wrong, as replicas use it
	x := &explanation{Topic: topic.String(), Subscription: name, Cluster: cluster, Identity: s.Identity, Revision: s.Revision}
	x.set, x.effective = set, set.Explain(cluster, topic, name)
	sources := x.effective.Sources
	x.from = func(field string) string { return cli.Quote(sources[field]) }
	add := func(field, stored, value string) {
		v := fieldView{Field: field, Value: value}
		if from, ok := sources[field]; ok {
			v.From = from.String()
			for _, e := range s.Entries {
				if e.Scope == from && e.Temporary && e.Field == stored && e.Err == nil {
					v.Expires = e.Expires
				}
			}
		}
		x.Fields = append(x.Fields, v)
	}
	for field := range policy.Fields() {
		isRate := field == "messageRate" || field == "byteRate"
		budget := isRate || strings.HasSuffix(strings.ToLower(field), "burst")
		p := x.effective.Subscription
		if budget {
			p = x.effective.Topic
		}
		value := output.Field(p, field)
		if isRate && (value == "" || value == "0") {
			value = "not throttled"
		}
		if value != "" {
			add(field, field, value)
		}
		for _, g := range x.effective.Aggregates {
			if all := output.Field(g.Policy, field); budget && all != "" {
				x.Fields = append(x.Fields, fieldView{Field: g.Scope.Kind.String() + "." + field, Value: all, From: g.Scope.String()})
			}
		}
		if own := output.Field(x.effective.Subscription, field); budget && own != "" {
			add(ownPrefix+field, field, own)
		}
	}
	if id := policy.TenantScope(topic.Tenant); x.goesOn(id) {
		q, _ := set.Quota(id)
		total := quotastate.ViewOf(id, q, s)
		x.Fields = append(x.Fields,
			fieldView{Field: "tenant.reservedThroughput", Value: fmt.Sprint(q.Reserved), From: id.String()},
			fieldView{Field: "tenant.totalThroughput", Value: fmt.Sprint(q.Total), From: id.String(), Expires: total.Expires})
	}
	return x
}

// explainLive asks the permit store how the limits stand and who shares them.
func (x *explanation) explainLive(ctx context.Context, live dispatch.PermitStore, topic policy.Topic) error {
	for _, l := range x.budgets(topic) {
		v := limitView{Limit: dispatch.ReasonOf(l.scope.Kind, l.bytes), Scope: l.scope.String(), Key: permits.LimitKey(x.Cluster, l.scope, l.bytes), Rate: l.rate.PerSec()}
		state, now, err := live.State(ctx, v.Key)
		if err != nil {
			return err
		}
		if state.Inc != 0 && l.lined() {
			v.InForce, v.Revision = state.Rate, state.Rev
			v.Ramp = state.Ramp.Over > 0 && !differ(state.Top, v.Rate) && differ(state.Rate, v.Rate)
			v.Ahead = max(0, state.Tail-now)
			v.Allocated = v.Ahead * state.Rate
			if l.strict() {
				v.Queued = len(state.Queue)
				v.Reserved = max(0, int64(math.Ceil(v.Allocated-1e-6))-1)
			}
		}
		if !l.lined() {
			v.Sharing = l.policy.Sharing
		}
		if l.strict() {
			v.Strict, v.MaxReserved = true, l.policy.ReservedAhead()
		}
		x.Limits = append(x.Limits, v)
	}
	replicas, err := cli.Published(ctx, live, x.Cluster)
	shareStrict(replicas, x.Limits)
	for _, r := range replicas {
		for _, s := range r.Subscriptions {
			if s.Topic != x.Topic || x.Subscription != "" && s.Subscription != x.Subscription {
				continue
			}
			v := readerView{Replica: r.Replica, Revision: r.Revision, Version: r.Version, PolicyError: r.PolicyError, SubscriptionStats: s}
			if len(s.Limits) > 0 {
				v.Share, v.Use, v.Rate = s.Limits[0].Share, s.Limits[0].Use, s.Limits[0].Rate
			}
			v.State = stateOf(s)
			x.Readers = append(x.Readers, v)
		}
	}
	x.Live = true
	return errors.Join(err, x.explainQuotas(ctx, live))
}

// shareStrict divides each strict limit evenly among those that wait for it or use it now: they take turns, and none of them
// knows of the others.
func shareStrict(replicas []dispatch.Stats, limits []limitView) {
	for _, limit := range limits {
		var sharers []*dispatch.LimitStats
		for _, r := range replicas {
			for _, s := range r.Subscriptions {
				for i := range s.Limits {
					if l := &s.Limits[i]; limit.Strict && l.Key == limit.Key && (s.Waiting > 0 || l.Use > 0) {
						sharers = append(sharers, l)
					}
				}
			}
		}
		for _, l := range sharers {
			l.Share = l.Rate / float64(len(sharers))
		}
	}
}

// A budget is a limit that applies.
type budget struct {
	scope  policy.Scope
	rate   policy.Rate
	bytes  bool
	policy policy.Policy // that it is shared by
}

func (b budget) strict() bool { return !b.bytes && b.policy.IsStrict() }

// lined says that the permit store keeps a line of slots for it: what is split or divided has none.
func (b budget) lined() bool { return b.bytes || !b.policy.IsSplit() && !b.policy.IsGrouped() }

// budgets returns the limits that a message must pass.
func (x *explanation) budgets(topic policy.Topic) (all []budget) {
	add := func(scope policy.Scope, p policy.Policy) {
		if p.MessageRate.Limited() {
			all = append(all, budget{scope, p.MessageRate, false, p})
		}
		if p.ByteRate.Limited() {
			all = append(all, budget{scope, p.ByteRate, true, p})
		}
	}
	add(policy.TopicScope(topic), x.effective.Topic)
	add(policy.SubscriptionScope(topic, x.Subscription), x.effective.Subscription)
	for _, g := range x.effective.Aggregates {
		add(g.Scope, g.Policy)
	}
	return all
}

// stateOf says in a word or two what a subscription does in a replica.
func stateOf(s dispatch.SubscriptionStats) string {
	switch {
	case s.Shadow:
		return "shadow"
	case s.Waiting > 0:
		return "waits"
	case s.CaughtUp && s.Exempt:
		return "caught up"
	case s.Exempt:
		return "let through"
	}
	return "does not wait"
}

// applies reports whether a scope's policy could say anything about the topic or the subscription.
func applies(of policy.Scope, cluster string, to policy.Scope) bool {
	paused := true
	set, _ := policy.NewSet([]policy.Entry{{Scope: of, Policy: policy.Policy{Paused: &paused}}}) // a bad pattern is left out
	return of.Kind == policy.UnreadableKind || set.Resolve(cluster, to.Topic, to.Subscription).Subscription.IsPaused()
}

// differ tells rates apart, but for rounding.
func differ(a, b float64) bool { return a > b*1.000001 || b > a*1.000001 }

func (x *explanation) table(w *strings.Builder, now time.Time) {
	of := x.Topic
	if x.Subscription != "" {
		of = "subscription " + x.Subscription + " of " + of
	}
	fmt.Fprintf(w, "%s, cluster %s, revision %d\n\n", of, x.Cluster, x.Revision)
	var rows [][]string
	for _, f := range x.Fields {
		lasts := "for good"
		switch {
		case f.From == "":
			lasts = "-"
		case !f.Expires.IsZero():
			lasts = output.Left(f.Expires, now)
		}
		from := f.From
		if from == "" {
			from = "default"
		}
		rows = append(rows, []string{f.Field, f.Value, from, lasts})
	}
	output.Table(w, []string{"FIELD", "VALUE", "FROM", "LASTS"}, rows)
	if len(x.Limits) > 0 {
		rows = nil
		for _, l := range x.Limits {
			row := []string{string(l.Limit), output.Number(l.Rate) + "/s", "nobody allocates", "-", "-"}
			if l.Limit == dispatch.ReasonQuota {
				if row[0] += " of " + l.Scope; l.Rate == 0 {
					row[1] = "-"
				}
			}
			if l.Sharing != "" {
				row[2] = "by " + string(l.Sharing)
			}
			if l.InForce != 0 {
				row[2] = output.Number(l.InForce) + "/s"
				row[3] = fmt.Sprintf("%s (%s permits)", output.Seconds(l.Ahead), output.Number(l.Allocated))
				row[4] = fmt.Sprint(l.Revision)
			}
			rows = append(rows, row)
		}
		fmt.Fprintln(w)
		output.Table(w, []string{"LIMIT", "RATE", "IN FORCE", "ALLOCATED AHEAD", "REVISION"}, rows)
	}
	if len(x.Readers) > 0 {
		rows = nil
		for _, r := range x.Readers {
			share, backlog := "-", "unknown"
			if r.Share > 0 {
				share = output.Number(r.Share) + "/s"
			}
			if r.Backlog >= 0 {
				backlog = fmt.Sprint(r.Backlog)
			}
			rows = append(rows, []string{r.name(), r.Replica, share, output.Number(r.Use) + "/s", fmt.Sprint(r.Waiting), backlog, r.State})
		}
		fmt.Fprintln(w)
		output.Table(w, []string{"SUBSCRIPTION", "REPLICA", "SHARE", "USES", "WAITING", "BACKLOG", "STATE"}, rows)
	}
	fmt.Fprintln(w)
	for _, why := range x.Why {
		output.Item(w, why)
	}
}
