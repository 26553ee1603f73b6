package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
)

func (x *explanation) say(format string, args ...any) {
	x.Why = append(x.Why, fmt.Sprintf(format, args...))
}

// addReasons describes why consumers are throttled or not: first by the policies, then by the
// permit store and the replicas. scope is the topic or the subscription.
func (x *explanation) addReasons(s configstore.Snapshot, scope policy.Scope, liveErr error) {
	for _, e := range s.Entries {
		if e.Err != nil && mayApply(e.Scope, x.Cluster, scope) {
			x.say("The stored policy of %s cannot be read; replicas keep the last valid one: %v",
				e.Scope, e.Err)
		}
	}
	for _, tie := range x.effective.Ties {
		a, b := cli.Quote(tie.A), cli.Quote(tie.B)
		x.say("%s and %s both match the topic, with the same priority and length. %s applies, "+
			"because its text sorts first. Give one of them a higher priority.", a, b, a)
	}
	x.addPolicyReason()
	if !x.effective.Subscription.IsPaused() {
		x.addQuotaReasons()
	}
	for _, l := range x.limits {
		if fault := l.shared.fault(l); fault != "" && !l.mode.IsShadow() {
			x.say("%s", fault)
		}
	}
	for _, note := range []string{
		overcommit.Limits(x.Cluster, s.Entries, scope), overcommit.Ignored(x.Cluster, s.Entries, scope),
	} {
		if note != "" {
			x.say("%s.", strings.ToUpper(note[:1])+note[1:])
		}
	}
	switch {
	case liveErr != nil:
		x.say("No live figures: the permit store could not be read.")
	case !x.Live:
		x.say("No live figures: they need a permit store that replicas share: "+
			"--permits redis://host:port, or %s.", throttle.EnvPermits)
	default:
		x.addLiveReasons()
	}
}

// mayApply reports whether a policy of that scope could apply to a topic or a subscription.
func mayApply(scope policy.Scope, cluster string, to policy.Scope) bool {
	if scope.Kind == policy.UnreadableKind {
		return true
	}
	paused := true // any field shows whether the scope applies
	set, _ := policy.NewSet([]policy.Entry{{Scope: scope, Settings: policy.Policy{Paused: &paused}}})
	return set.Resolve(cluster, to.Topic, to.Subscription).Subscription.IsPaused()
}

// addPolicyReason describes when the policy throttles.
func (x *explanation) addPolicyReason() {
	p := x.effective.Subscription.WithDefaults()
	enforced := x.enforced()
	const inFlight = "Throttled while %d of its messages are in flight in one replica."
	switch {
	case p.IsPaused(): // in shadow mode too
		x.say("Paused. To resume it: throttle-admin resume %s", x.from("paused"))
		return
	case len(x.limits) == 0 && *p.MaxInFlight > 0:
	case len(x.limits) == 0 && len(x.quotas) > 0: // addQuotaReasons describes these
	case len(x.limits) == 0:
		x.say("Not throttled: no limit is set.")
	case len(enforced) == 0:
	case *p.CaughtUp.Throttle:
		x.say("Throttled when its consumers together reach a limit, even without a backlog, as "+
			"set by %s.", x.from("caughtUp.throttle"))
	default:
		x.addLimitReasons(enforced, *p.CaughtUp.Backlog)
	}
	switch {
	case *p.MaxInFlight == 0:
	case p.Mode == policy.Shadow:
		x.say("Not throttled by maxInFlight: the mode is shadow, set by %s. Messages above it are "+
			"only counted.", x.from("mode"))
	case len(x.limits) == 0:
		x.say(inFlight+" No rate is set.", *p.MaxInFlight)
	default:
		x.say(inFlight, *p.MaxInFlight)
	}
	for _, l := range x.limits {
		switch {
		case l.mode.IsShadow():
			x.say("Not throttled by the %s: its mode is shadow, set by %s. Messages above it are "+
				"only counted.", l.reason(), cli.Quote(l.mode.By))
		case p.Mode == policy.Shadow && !l.isAggregate():
			x.say("The shadow mode of %s does not apply to the %s. throttle-admin set --help says "+
				"which limits a mode applies to.", x.from("mode"), l.reason())
		}
	}
}

// enforced are the limits that are not in shadow mode.
func (x *explanation) enforced() []limit {
	return slices.DeleteFunc(slices.Clone(x.limits), func(l limit) bool { return l.mode.IsShadow() })
}

// addLimitReasons describes when the limits throttle: first those that a subscription with a
// backlog of at most that many messages bypasses, then the others.
func (x *explanation) addLimitReasons(limits []limit, backlog int64) {
	var bypassed, others []string
	for _, l := range limits {
		switch {
		case l.exemptsCaughtUp():
			bypassed = append(bypassed, "the "+string(l.reason()))
		case l.isAggregate():
			others = append(others, fmt.Sprintf("Throttled when all topics of %s together reach "+
				"its limit, even without a backlog.", l.scope))
		default:
			others = append(others, fmt.Sprintf("Throttled when its consumers together reach the "+
				"%s, even without a backlog, because it is strict.", l.reason()))
		}
	}
	switch {
	case len(others) == 0:
		x.say("Throttled when its consumers together reach a limit. A subscription without a "+
			"backlog (at most %d messages) is not throttled.", backlog)
	case len(bypassed) > 0:
		x.say("Throttled when its consumers together reach a limit. A subscription without a "+
			"backlog (at most %d messages) bypasses %s.", backlog, strings.Join(bypassed, " and "))
	}
	x.Why = append(x.Why, slices.Compact(others)...) // rates of one scope have one sentence
}

// addQuotaReasons describes when the quotas throttle.
func (x *explanation) addQuotaReasons() {
	for _, id := range x.quotas {
		switch q, _ := x.set.Quota(id); {
		case q.Shadow:
			x.say("The quota of %s does not throttle: its mode is shadow, so that its rate "+
				"is only computed.", id)
		case q.Total == 0:
			x.say("Subscriptions charged to %s are paused: its total is 0. To resume them: "+
				"throttle-admin quota set %[1]s total=BYTES", id)
		default:
			x.say("Subscriptions charged to %s are throttled, even without a backlog, when they "+
				"together reach its quota, %d bytes of cost a second (%d reserved). For the "+
				"calculation of its rate: throttle-admin explain %[1]s", id, q.Total, q.Reserved)
		}
	}
}

// addLiveReasons describes the state of the limits and of the replicas.
func (x *explanation) addLiveReasons() {
	if x.unkept {
		x.say("No ratekeeper's rates are in force: a quota's rate is its reservation or, without " +
			"one, its total, divided by the last known cost of a message.")
	}
	if len(x.Replicas) == 0 {
		x.say("No consumers: no replica has reported the topic in the last 3 s.")
	}
	for i, l := range x.limits {
		v := x.Limits[i]
		x.Why = append(x.Why, l.shared.why(l, v, x.Replicas)...)
		switch {
		case v.Rival != "":
			x.say("Replicas that follow another policy store, %s, use the %s, too: the lower rate is in force. "+
				"Give each policy store a cluster of its own, or all replicas one store.",
				cli.Argument(v.Rival), v.Limit)
		case v.Ramp:
			how := "with time"
			if x.effective.Subscription.Ramp.Mode == policy.RampRelaxed {
				how = "in each second with demand"
			}
			x.say("The %s is on its ramp, at %s/s of %s/s; it rises %s.",
				v.Limit, output.Number(v.InForce), output.Number(v.Rate), how)
		case v.InForce != 0 && differ(v.InForce, v.Rate):
			x.say("The permit store still allocates the %s at %s/s; %s/s applies from the next "+
				"allocation on.", v.Limit, output.Number(v.InForce), output.Number(v.Rate))
		}
	}
	x.addStoreReasons()
	for _, h := range x.heldUp {
		if x.Subscription == "" || x.Subscription == h.subscription {
			x.say("%s in %s reads the topic in one line with %s, a message of which waits now (%s). "+
				"Read each topic with a consumer of its own.", h.subscription, h.replica, h.behind, h.reason)
		}
	}
	for _, r := range x.Replicas {
		x.say("%s in %s is %s.", r.name(), r.Replica, x.stateOf(r))
	}
}

// stateOf describes the state of one subscription in one replica, with its reason.
func (x *explanation) stateOf(r replicaView) string {
	p := x.effective.Subscription.WithDefaults()
	switch {
	case r.Waiting > 0:
		return x.throttledBy(r)
	case r.CaughtUp && r.Exempt:
		return fmt.Sprintf("not throttled: it has no backlog (%d messages, threshold %d)",
			r.Backlog, *p.CaughtUp.Backlog)
	case r.Exempt && p.OnOutage == policy.OutageOpen:
		return "not throttled: its permit store is unavailable, and onOutage is open"
	case r.Exempt:
		return "not throttled: no limit is in force there"
	case shadowOnly(r.Limits):
		var above []string
		for _, l := range r.Limits {
			above = append(above, fmt.Sprintf("%d messages for the %s", r.Shadowed[l.Reason], l.Reason))
		}
		return "not throttled: without shadow mode, there would have waited " + strings.Join(above, " and ")
	case r.Share > 0:
		return fmt.Sprintf("not throttled: it uses %s/s of its share of %s/s",
			output.Number(r.Use), output.Number(r.Share))
	}
	return "not throttled: its demand is below the limit"
}

// throttledBy describes what callers of a subscription wait for in a replica.
func (x *explanation) throttledBy(r replicaView) string {
	p := x.effective.Subscription.WithDefaults()
	switch r.Reason {
	case dispatch.ReasonNone:
		return "about to get permits: its callers have just arrived"
	case dispatch.ReasonInFlight:
		return fmt.Sprintf("throttled: %d of its messages are in flight, of at most %d",
			r.InFlight, *p.MaxInFlight)
	case dispatch.ReasonPaused:
		if id, ok := x.pausedBy(r); ok {
			return fmt.Sprintf("paused: the total of %s is 0", id)
		}
		return "paused"
	case dispatch.ReasonNoGroup:
		return "throttled permanently: it is in no worker group of a limit. Start it with " +
			throttle.EnvGroup + " set, or change sharing.groups"
	case dispatch.ReasonPermits:
		return fmt.Sprintf("throttled: its permit store is unavailable, and onOutage is %s",
			p.OnOutage)
	}
	for _, l := range r.Limits {
		if l.Reason == r.Reason {
			return throttledByLimit(l)
		}
	}
	return fmt.Sprintf("throttled: %s", r.Reason)
}

// throttledByLimit describes a replica's part of a limit that its callers wait for.
func throttledByLimit(l dispatch.LimitStats) string {
	all, use := output.Number(l.Rate)+"/s", output.Number(l.Use)+"/s"
	switch l.Reason {
	case dispatch.ReasonBusy:
		return fmt.Sprintf("throttled: the service that it calls is busy, which limits all "+
			"replicas together to %s; it uses %s", all, use)
	case dispatch.ReasonQuota:
		return fmt.Sprintf("throttled by a throughput quota, which limits all subscriptions "+
			"together to %s; it uses %s", all, use)
	}
	if l.Ramp > 0 {
		all = output.Number(l.Ramp) + "/s of " + all + " on its ramp"
	}
	var part string
	share := output.Number(l.Share) + "/s"
	switch {
	case l.Group != "":
		part = fmt.Sprintf("it is in worker group %s and uses %s", l.Group, use)
	case l.Pool > 0:
		part = fmt.Sprintf("as one of %d replicas, its share is %s, of which it uses %s",
			l.Pool, share, use)
	case l.Share > 0:
		part = fmt.Sprintf("its share is %s, of which it uses %s", share, use)
	default:
		part = fmt.Sprintf("its share is not known yet; it uses %s", use)
	}
	return fmt.Sprintf("throttled by the %s, %s for all replicas: %s", l.Reason, all, part)
}

// pausedBy returns the id whose quota of 0 pauses a replica, if that is what pauses it.
func (x *explanation) pausedBy(r replicaView) (id policy.Scope, ok bool) {
	for _, l := range r.Limits {
		for _, id := range x.quotas {
			if q, _ := x.set.Quota(id); q.Total == 0 && l.Key == permits.QuotaKey(x.Cluster, id) {
				return id, !x.effective.Subscription.IsPaused()
			}
		}
	}
	return id, false
}
