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

// explainWhy says in plain words why there is waiting or none. What the replicas say goes before what the policies say.
func (x *explanation) explainWhy(s configstore.Snapshot, scope policy.Scope, liveErr error) {
	say := func(format string, args ...any) { x.Why = append(x.Why, fmt.Sprintf(format, args...)) }
	for _, e := range s.Entries {
		if e.Err != nil && applies(e.Scope, x.Cluster, scope) {
			say("The stored policy of %s cannot be read, and replicas keep the last one that could be: %v", e.Scope, e.Err)
		}
	}
	for _, tie := range x.effective.Ties {
		say("%s and %s both match it, with the same priority and length. %s wins, since its text sorts first: give one of them another priority.",
			cli.Quote(tie.A), cli.Quote(tie.B), cli.Quote(tie.A))
	}
	p := x.effective.Subscription
	budgets := x.budgets(scope.Topic)
	plain := slices.ContainsFunc(budgets, func(b budget) bool {
		return b.scope.Kind == policy.TopicKind || b.scope.Kind == policy.SubscriptionKind
	})
	switch {
	case p.IsPaused(): // in shadow mode, too
		say("It waits because it is paused: throttle-admin resume %s", x.from("paused"))
	case len(budgets) == 0 && p.InFlight() > 0:
		say("It waits while %d of its messages are in flight in one replica; no rate is set for it.", p.InFlight())
	case len(budgets) == 0 && len(x.quotas) > 0: // which are said of below
	case len(budgets) == 0:
		say("It does not wait: no limit is set for it.")
	case p.IsShadow():
		say("It does not wait: its mode is shadow, set by %s, so that messages that would wait are only counted.", x.from("mode"))
	case p.ThrottlesCaughtUp():
		say("It waits when its readers together ask for more, even those that have caught up, by %s.", x.from("throttleCaughtUp"))
	case !plain:
		say("It waits when all topics of %s together ask for more, even who has caught up.", budgets[0].scope)
	default:
		say("It waits when its readers together ask for more; who has caught up (a backlog of at most %d) does not.", p.CaughtUpThreshold())
	}
	if !p.IsPaused() && !p.IsShadow() {
		x.Why = append(x.Why, x.sayQuotas()...)
	}
	for _, b := range budgets {
		if !b.bytes && b.policy.IsGrouped() && b.policy.Groups == "" {
			say("It waits for ever: the limit of %s is divided over groups, and names none. Set groups=a,b.", b.scope)
		}
	}
	if over := overcommit.Limits(x.Cluster, s.Entries, scope); over != "" {
		say("%s", strings.ToUpper(over[:1])+over[1:]+".")
	}
	switch {
	case liveErr != nil:
		say("Live figures are missing: the permit store could not be read.")
		return
	case !x.Live:
		say("Live figures need a permit store that processes share: --permits redis://host:port, or %s.", throttle.EnvPermits)
		return
	case len(x.Readers) == 0:
		say("Nobody dispatches from it now: no replica has reported in the last 3 s that it reads from it.")
	}
	for _, l := range x.Limits {
		if l.Strict {
			say("The %s is paced strictly, one every %s: %d permits are reserved (starts in the future), of %d at most.",
				l.Limit, output.Seconds(1/l.Rate), l.Reserved, l.MaxReserved)
			if l.Queued > 0 {
				say("%d wait in the queue for the next one, in the order in which they came.", l.Queued)
			}
		}
		switch {
		case l.Ramp:
			how := "with the time"
			if p.Ramp == policy.RampRelaxed {
				how = "in each second in which somebody asks"
			}
			say("The %s is on its ramp, at %s/s of %s/s: it rises %s.", l.Limit, output.Number(l.InForce), output.Number(l.Rate), how)
		case l.Limit == dispatch.ReasonQuota: // of which rates are smoothed, and never quite the same
		case l.InForce != 0 && differ(l.InForce, l.Rate):
			say("The permit store's line for the %s still runs at %s/s: %s/s comes in force with the next allocation.", l.Limit, output.Number(l.InForce), output.Number(l.Rate))
		}
	}
	x.Why = append(x.Why, x.sayGroups(budgets)...)
	for _, r := range x.Readers {
		x.Why = append(x.Why, x.sayReader(r)...)
	}
}

// sayQuotas says what the quotas do.
func (x *explanation) sayQuotas() (why []string) {
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	for _, id := range x.quotas {
		switch q, _ := x.set.Quota(id); {
		case q.Shadow:
			say("Nobody waits for the quota of %s: its quotaMode is shadow, so that its rate is only computed.", id)
		case q.Total == 0:
			say("Who goes on account of %s waits because its quota is 0: throttle-admin quota set %[1]s total_throughput BYTES", id)
		default:
			say("Who goes on account of %s waits when all of them together cost more than its quota, %d bytes of cost a second (%d reserved), "+
				"even who has caught up. How its rate is found: throttle-admin explain %[1]s", id, q.Total, q.Reserved)
		}
	}
	if x.unkept && x.Live {
		say("No ratekeeper finds rates of quotas now: they are worth what is reserved or, if nothing is, their total, by what a message cost last.")
	}
	return why
}

// name is the subscription's, with its owner if it has one.
func (r readerView) name() string {
	if r.Owner == "" {
		return r.Subscription
	}
	return r.Subscription + " (" + r.Owner + ")"
}

// pausedBy is the throttling id by whose quota a reader is paused, if that is what pauses it.
func (x *explanation) pausedBy(r readerView) (id policy.Scope, ok bool) {
	for _, l := range r.Limits {
		for _, id := range x.quotas {
			if q, _ := x.set.Quota(id); q.Total == 0 && l.Key == permits.QuotaKey(x.Cluster, id) {
				return id, !x.effective.Subscription.IsPaused()
			}
		}
	}
	return id, false
}

// sayReader says why one subscription in one replica waits or does not.
func (x *explanation) sayReader(r readerView) (why []string) {
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	who := r.name() + " in " + r.Replica
	by, byQuota := x.pausedBy(r)
	p := x.effective.Subscription
	switch {
	case r.Waiting > 0 && r.Reason == dispatch.ReasonInFlight:
		say("%s waits because %d of its messages are in flight, of %d that may be.", who, r.InFlight, p.InFlight())
	case r.Waiting > 0 && r.Reason == dispatch.ReasonPaused && byQuota:
		say("%s waits because the total of %s is 0.", who, by)
	case r.Waiting > 0 && r.Reason == dispatch.ReasonPaused:
		say("%s waits because it is paused.", who)
	case r.Waiting > 0 && r.Reason == dispatch.ReasonNoGroup:
		say("%s waits for ever: it is in none of the groups of a limit that it falls under. Start it with %s, or change groups.", who, throttle.EnvGroup)
	case r.Waiting > 0 && (r.Reason == dispatch.ReasonBusy || r.Reason == dispatch.ReasonQuota):
		what := "what it calls answers that it is busy, which slows down all its processes"
		if r.Reason == dispatch.ReasonQuota {
			what = "of a throughput quota"
		}
		for _, l := range r.Limits {
			if l.Reason == r.Reason {
				say("%s waits because %s: %s/s for everybody, of which it uses %s/s.", who, what, output.Number(l.Rate), output.Number(l.Use))
			}
		}
	case r.Waiting > 0 && r.Reason == dispatch.ReasonPermits:
		say("%s waits because its permit store does not answer, and onOutage is %s.", who, p.Outage())
	case r.Waiting > 0 && r.Reason != dispatch.ReasonNone:
		for _, l := range r.Limits {
			if l.Reason != r.Reason {
				continue
			}
			share := "its share is not known yet"
			if l.Group != "" {
				share = "it is in group " + l.Group
			} else if l.Pool > 0 {
				share = fmt.Sprintf("%s/s, that of one replica in %d", output.Number(l.Share), l.Pool)
			} else if l.Share > 0 {
				share = "its share is " + output.Number(l.Share) + "/s"
			}
			everybody := output.Number(l.Rate) + "/s"
			if l.Ramp > 0 {
				everybody = output.Number(l.Ramp) + "/s of " + everybody + " by now"
			}
			say("%s waits for the %s, %s for everybody: %s, of which it uses %s/s.", who, r.Reason, everybody, share, output.Number(l.Use))
		}
	case r.Waiting > 0:
		say("%s has callers that are about to be served.", who)
	case r.CaughtUp && r.Exempt:
		say("%s does not wait: it has caught up (backlog %d, threshold %d), and who has is not throttled.", who, r.Backlog, p.CaughtUpThreshold())
	case r.Exempt && p.Outage() == policy.OutageOpen:
		say("%s does not wait: its permit store is away, and onOutage is open.", who)
	case r.Exempt:
		say("%s does not wait: no limit is in force there.", who)
	case r.Shadow:
		say("%s does not wait: shadow mode has let through %d messages that would have waited.", who, r.Shadowed)
	case r.Share > 0:
		say("%s does not wait: it uses %s/s of its share of %s/s.", who, output.Number(r.Use), output.Number(r.Share))
	default:
		say("%s does not wait: it asks for less than there is.", who)
	}
	if r.PolicyError != "" {
		say("%s cannot read the policies now, and goes on with revision %d: %s", r.Replica, r.Revision, r.PolicyError)
	}
	return why
}

// sayGroups says which of the limits' groups of workers have nobody in them.
func (x *explanation) sayGroups(budgets []budget) (why []string) {
	for _, b := range budgets {
		if b.bytes || !b.policy.IsGrouped() {
			continue
		}
		for _, name := range b.policy.GroupNames() {
			there := slices.ContainsFunc(x.Readers, func(r readerView) bool {
				return slices.ContainsFunc(r.Limits, func(l dispatch.LimitStats) bool { return l.Group == name })
			})
			if !there {
				why = append(why, fmt.Sprintf("Nobody is in group %s of %s: the others use %s %% of its part of %s at most, and the rest is lost.",
					name, b.scope, output.Number(100*(1-b.policy.KeptBack())), b.rate))
			}
		}
	}
	return why
}
