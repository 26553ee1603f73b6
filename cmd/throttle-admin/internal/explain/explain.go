// Package explain holds the command that shows which policy and limits apply to a topic or a
// quota, where they come from, and why consumers are throttled or not.
package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newExplainCommand(a)}
}

// An explanation is what applies to a topic, or to one of its subscriptions, and why.
type explanation struct {
	Topic        string        `json:"topic"`
	Subscription string        `json:"subscription,omitempty"`
	Cluster      string        `json:"cluster"`
	Identity     string        `json:"identity"` // of the policy store
	Revision     int64         `json:"revision"` // of the policies
	Fields       []fieldView   `json:"fields"`
	Live         bool          `json:"live"` // whether the permit store was read
	Limits       []limitView   `json:"limits,omitempty"`
	Replicas     []replicaView `json:"replicas,omitempty"`
	Held         []cli.Held    `json:"held,omitempty"`   // replicas that keep other policies
	Others       []cli.KnownID `json:"others,omitempty"` // of other stores, that replicas follow
	Why          []string      `json:"why"`

	set       *policy.Set
	effective policy.Effective
	limits    []limit
	heldUp    []heldUp
	replicas  []dispatch.Stats // all of the cluster
	quotas    []policy.Scope   // ids with a quota that subscriptions of the topic are charged to
	unkept    bool             // no ratekeeper's rates are in force
}

// A fieldView is one field of the effective policy.
type fieldView struct {
	Field   string      `json:"field"`
	Value   string      `json:"value"`
	Mode    policy.Mode `json:"mode,omitempty"` // of a rate's limit
	From    string      `json:"from,omitempty"` // the scope that sets it; "" means the default
	Expires time.Time   `json:"expires,omitzero"`
}

func newExplainCommand(a *cli.App) *cobra.Command {
	var subscription string
	var message messageFlags
	cmd := &cobra.Command{
		Use:   "explain TOPIC|tenant:NAME|tag:NAME",
		Short: "Show which limits apply to a topic or a quota, and why consumers are throttled",
		Long: `Show which limits apply to a topic: its effective policy, with the scope that sets
each field; how far permits are allocated ahead; the replicas that share them; and why they are
throttled or not. Live figures need --permits. With --message, show instead what would happen
to one message now: which limits it needs permits of, which scope sets each, whether it would wait
and about how long, with the arithmetic.

For a throughput quota, show the calculation of its rate. While no ratekeeper leads, show the rate
that is in force instead; the exit status is then 1.`,
		Example: `  throttle-admin explain kafka://public/default/orders
  throttle-admin explain kafka://public/default/orders --subscription billing -o json
  throttle-admin explain --message kafka://public/default/orders --subscription billing --bytes 5000
  throttle-admin explain tag:reports`,
		Args: cli.Args("TOPIC or ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := a.ScopeOf(cmd, args[0])
			permits, permitsErr := a.OpenPermits()
			if err == nil {
				err = message.check(cmd, scope)
			}
			if err := errors.Join(cli.Usage(err), permitsErr); err != nil {
				return err
			}
			if permits != nil {
				defer func() { _ = permits.Close() }() // only read from
			}
			switch scope.Kind {
			case policy.TagKind, policy.TenantKind:
				return explainQuota(cmd.Context(), a, scope, permits)
			case policy.TopicKind, policy.SubscriptionKind:
				return explainTopic(cmd.Context(), a, scope, permits, message)
			}
			return cli.Usage(cli.ArgError("topic", args[0],
				"invalid topic: want its URL, such as kafka://tenant/namespace/name, "+
					"or tenant:NAME or tag:NAME for a quota"))
		},
	}
	cli.AddSubscription(cmd, &subscription)
	message.add(cmd)
	return cmd
}

// explainTopic explains a topic or a subscription; store is nil without a shared permit store.
func explainTopic(
	ctx context.Context, a *cli.App, scope policy.Scope, store dispatch.PermitStore, message messageFlags,
) error {
	s, err := a.Policies(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	x := explainPolicy(s, a.Cluster, scope)
	if message.tag != "" {
		x.addQuota(policy.TagScope(message.tag))
	}
	var liveErr error
	if store != nil {
		ctx, cancel := context.WithTimeout(ctx, cli.StoreTimeout)
		defer cancel()
		if liveErr = x.addLive(ctx, a, store); liveErr != nil {
			liveErr = quotastate.PermitsFault(liveErr)
		}
		x.Others = cli.Others(x.replicas, x.Identity)
	}
	if message.asked {
		r := x.messageReport(message)
		return errors.Join(a.Print(r, r.table), liveErr)
	}
	x.addReasons(s, scope, liveErr)
	return errors.Join(a.Print(x, func(w *strings.Builder) { x.table(w, now) }), liveErr)
}

// explainPolicy explains the effective policy of a topic or a subscription.
func explainPolicy(s configstore.Snapshot, cluster string, scope policy.Scope) *explanation {
	set, _ := policy.NewSet(s.Entries) // replicas also leave out invalid entries
	x := &explanation{
		Topic: scope.Topic.String(), Subscription: scope.Subscription, Cluster: cluster,
		Identity: s.Marker.ID, Revision: s.Revision,
		set: set, effective: set.Explain(cluster, scope.Topic, scope.Subscription),
	}
	x.limits = limitsOf(scope, x.effective)
	for _, f := range policy.PolicySection.Fields() {
		x.addField(s, f.Name)
	}
	if id := policy.TenantScope(scope.Topic.Tenant); x.addQuota(id) {
		q, _ := set.Quota(id)
		total := quotastate.ViewOf(id, q, s)
		x.Fields = append(x.Fields,
			fieldView{
				Field: "tenant.quota.reserved", Value: fmt.Sprint(q.Reserved),
				From: id.String(),
			},
			fieldView{
				Field: "tenant.quota.total", Value: fmt.Sprint(q.Total), From: id.String(),
				Expires: total.Expires,
			})
	}
	return x
}

// addField adds the values of a field. Fields of a limit have one for the topic's limit, one for
// each aggregate limit and one for the subscription's own limit.
func (x *explanation) addField(s configstore.Snapshot, field string) {
	isRate := field == "messageRate" || field == "byteRate"
	ofLimit := isRate || strings.HasSuffix(strings.ToLower(field), "burst")
	if !ofLimit {
		if value := policy.Text(x.effective.Subscription, field); value != "" {
			x.Fields = append(x.Fields, x.view(s, field, field, value))
		}
		return
	}
	modeIn := func(modes policy.Modes) policy.Mode {
		switch {
		case !isRate:
			return ""
		case field == "messageRate":
			return modes.Messages.Mode
		}
		return modes.Bytes.Mode
	}
	value := policy.Text(x.effective.Topic, field)
	if isRate && (value == "" || value == "0") {
		value = "not throttled"
	}
	if value != "" {
		v := x.view(s, field, field, value)
		v.Mode = modeIn(x.effective.TopicModes)
		x.Fields = append(x.Fields, v)
	}
	for _, g := range x.effective.Aggregates {
		if value := policy.Text(g.Policy, field); value != "" {
			x.Fields = append(x.Fields, fieldView{
				Field: g.Scope.Kind.String() + "." + field, Value: value, Mode: modeIn(g.Modes),
				From: g.Scope.String(),
			})
		}
	}
	if value := policy.Text(x.effective.Subscription, field); value != "" {
		v := x.view(s, "subscription."+field, field, value)
		v.Mode = modeIn(x.effective.SubscriptionModes)
		x.Fields = append(x.Fields, v)
	}
}

// view returns the view of a field, with the scope that sets it. Sources has the field under
// name.
func (x *explanation) view(s configstore.Snapshot, name, field, value string) fieldView {
	v := fieldView{Field: name, Value: value}
	from, ok := x.effective.Sources[name]
	if !ok {
		return v
	}
	v.From = from.String()
	for _, e := range s.Entries {
		ofPolicy := e.Section() == policy.PolicySection && e.Scope == from
		if ofPolicy && e.Temporary && e.Field == field && e.Err == nil {
			v.Expires = e.Expires
		}
	}
	return v
}

// from returns the scope that sets a field, as an argument for a shell.
func (x *explanation) from(field string) string { return cli.Quote(x.effective.Sources[field]) }

// addQuota notes that subscriptions may be charged to an id, and reports whether it has a quota.
func (x *explanation) addQuota(id policy.Scope) bool {
	_, ok := x.set.Quota(id)
	if ok && !slices.Contains(x.quotas, id) {
		x.quotas = append(x.quotas, id)
	}
	return ok
}
