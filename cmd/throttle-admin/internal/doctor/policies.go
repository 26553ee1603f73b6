package doctor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/policy"
)

func (f *facts) unreadable() (found []finding) {
	for _, e := range f.snapshot.Entries {
		if e.Err == nil {
			continue
		}
		mend := "throttle-admin remove "
		switch scope := cli.Quote(e.Scope); {
		case e.Scope.Kind == policy.UnreadableKind:
			mend += cli.Argument(e.Scope.Pattern)
		case e.Section() == policy.QuotaSection:
			mend = "throttle-admin quota clear " + scope
		case e.Section() == policy.QuotaSettingsSection:
			mend = "throttle-admin quota settings --clear"
		case e.Section() == policy.HistorySettingsSection:
			mend = "throttle-admin history settings --clear"
		default:
			mend += scope
		}
		found = append(found, finding{fault, "policy-unreadable", e.Section().String() + " " + e.Scope.String(),
			e.Err.Error(), "Replicas keep the last valid one; those that start have none.", mend})
	}
	return found
}

func (f *facts) ties() (found []finding) {
	for _, tie := range f.set.Ties(func(policy.Scope) bool { return true }) {
		if tie.Topic != "" {
			found = append(found, finding{warning, "policy-tie", tie.A.String() + " and " + tie.B.String(),
				"both match " + tie.Topic + " with the same priority",
				"The one whose text sorts first applies, " + tie.A.String() + ".",
				fmt.Sprintf("throttle-admin set %s priority=%d", cli.Quote(tie.A), tie.Priority+1)})
		}
	}
	return found
}

func (f *facts) reservations() (found []finding) {
	for _, r := range overcommit.Reservations(f.cluster, f.snapshot.Entries, policy.ClusterScope()) {
		field := "messageRate"
		if r.Bytes {
			field = "byteRate"
		}
		found = append(found, finding{warning, "over-committed", r.Scope.String(), r.String(),
			"No subscription gets what it reserves while all of them have a backlog.",
			fmt.Sprintf("throttle-admin set %s %s=%.0f", cli.Quote(r.Scope), field, math.Ceil(r.Reserved))})
	}
	if over := overcommit.Quotas(f.snapshot.Entries, f.now); over != nil {
		found = append(found, finding{warning, "over-committed", "quotas", over.Text(f.now),
			"No id gets what it reserves while all of them have a backlog.",
			fmt.Sprintf("throttle-admin quota settings capacity=%d", over.Reserved)})
	}
	return found
}

func (f *facts) ignoredWeights() (found []finding) {
	for _, n := range overcommit.NoEffects(f.cluster, f.snapshot.Entries, policy.ClusterScope()) {
		sources := f.set.Explain(f.cluster, n.At.Topic, n.At.Subscription).Sources
		var mend []string // what to decide comes first: the whole is no command then
		clear := "throttle-admin set " + cli.Quote(n.At)
		own := false
		for _, field := range n.Fields {
			if sources[field] != n.At { // for other topics, it may have an effect
				mend = append(mend, fmt.Sprintf("decide whether %s of %s is meant for this topic, too", field, cli.Quote(sources[field])))
				continue
			}
			clear, own = clear+" "+field+"=", true
		}
		if own {
			mend = append(mend, clear)
		}
		found = append(found, finding{hint, "no-effect", n.At.String(), n.String(),
			"The limit is shared in another way than the policies say.", strings.Join(mend, "; ")})
	}
	return found
}

// neverBinding finds limits that another limit of the same messages never lets anybody reach.
func (f *facts) neverBinding() (found []finding) {
	type id struct {
		scope policy.Scope
		field string
	}
	seen := map[id]bool{}
	for _, at := range f.topics() {
		e := f.set.Explain(f.cluster, at.topic, at.subscription)
		for _, field := range []string{"messageRate", "byteRate"} {
			limits := limitsOf(e, at, field)
			for i, l := range limits {
				if l.scope.Kind != policy.TopicKind && l.scope.Kind != policy.SubscriptionKind {
					continue // a wider scope may throttle other topics
				}
				for _, wider := range limits[:i] {
					if l.rate.PerSec() < wider.rate.PerSec() || l.burst < wider.burst || seen[id{l.scope, field}] {
						continue
					}
					seen[id{l.scope, field}] = true
					found = append(found, finding{hint, "never-reached", l.scope.String(),
						fmt.Sprintf("its %s is %s, and %s is %s", field, l.rate, wider.name, wider.rate),
						"It never throttles: the other limit is reached first.",
						fmt.Sprintf("throttle-admin set %s %s=", cli.Quote(l.scope), field)})
				}
			}
		}
	}
	return found
}

// A limit is one that is enforced, of messages or of bytes.
type limit struct {
	scope policy.Scope // that sets it
	name  string
	rate  policy.Rate
	burst int64
}

// limitsOf returns the limits of a place that a field sets and that are enforced, the widest first.
func limitsOf(e policy.Effective, at place, field string) (limits []limit) {
	add := func(scope policy.Scope, name string, p policy.Policy, modes policy.Modes) {
		p = p.WithDefaults()
		l, mode := limit{scope, name, p.MessageRate, *p.Burst}, modes.Messages
		if field == "byteRate" {
			l.rate, l.burst, mode = p.ByteRate, *p.ByteBurst, modes.Bytes
		}
		if l.rate.Limited() && !mode.IsShadow() {
			limits = append(limits, l)
		}
	}
	for _, g := range e.Aggregates {
		add(g.Scope, "the aggregate limit of "+g.Scope.String(), g.Policy, g.Modes)
	}
	add(e.Sources[field], "the topic's limit", e.Topic, e.TopicModes)
	if at.subscription != "" {
		add(e.Sources["subscription."+field], "the subscription's limit", e.Subscription, e.SubscriptionModes)
	}
	return limits
}

// A place is a topic that policies name or replicas consume, or one of its subscriptions.
type place struct {
	topic        policy.Topic
	subscription string
}

// topics returns all places that are known, in order.
func (f *facts) topics() []place {
	known := map[place]bool{}
	for _, e := range f.snapshot.Entries {
		if e.Scope.Kind == policy.TopicKind || e.Scope.Kind == policy.SubscriptionKind {
			known[place{e.Scope.Topic, e.Scope.Subscription}] = true
		}
	}
	for _, r := range f.replicas {
		for _, s := range r.Subscriptions {
			if topic, err := policy.ParseTopic(s.Topic); err == nil {
				known[place{topic, s.Subscription}] = true
			}
		}
	}
	all := make([]place, 0, len(known))
	for p := range known {
		all = append(all, p)
	}
	scope := func(p place) policy.Scope { return policy.SubscriptionScope(p.topic, p.subscription) }
	slices.SortFunc(all, func(a, b place) int { return scope(a).Compare(scope(b)) })
	return all
}

func (f *facts) unusedPatterns() (found []finding) {
	for _, r := range f.replicas { // idle subscriptions are not published, nor all of very many
		if len(r.Subscriptions) == 0 || r.More > 0 {
			return nil
		}
	}
	if len(f.replicas) == 0 {
		return nil // no topics are known but those of policies
	}
	topics := slices.CompactFunc(f.topics(), func(a, b place) bool { return a.topic == b.topic })
	for _, e := range f.snapshot.Entries {
		if e.Scope.Kind != policy.PatternKind || e.Temporary || e.Err != nil {
			continue
		}
		paused := true // shows whether the pattern applies
		alone, err := policy.NewSet([]policy.Entry{{Scope: e.Scope, Settings: policy.Policy{Paused: &paused}}})
		matches := func(p place) bool { return alone.Resolve(f.cluster, p.topic, "").Topic.IsPaused() }
		if err == nil && !slices.ContainsFunc(topics, matches) {
			found = append(found, finding{hint, "pattern-unused", e.Scope.String(),
				fmt.Sprintf("it matches none of %s that policies or running replicas name", cli.Count(len(topics), "topic")),
				"It may be mistyped, unless its topics are idle.", "if it is: throttle-admin remove " + cli.Quote(e.Scope)})
		}
	}
	return found
}

// soon is how long before its end a temporary value is reported.
const soon = 10 * time.Minute

func (f *facts) endingSoon() (found []finding) {
	for _, e := range f.snapshot.Entries {
		if left := e.Expires.Sub(f.now); !e.Temporary || e.Err != nil || left > soon {
			continue
		}
		set := "set " + cli.Quote(e.Scope)
		switch e.Section() {
		case policy.QuotaSection:
			set = "quota " + set
		case policy.QuotaSettingsSection:
			set = "quota settings"
		case policy.HistorySettingsSection:
			set = "history settings"
		case policy.PolicySection:
		}
		value := policy.Text(e.Settings, e.Field)
		found = append(found, finding{hint, "ends-soon", e.Scope.String(),
			fmt.Sprintf("%s=%s ends in %s", e.Field, value, output.Left(e.Expires, f.now)),
			"What is below it is in force then.",
			fmt.Sprintf("to keep it: throttle-admin %s %s=%s", set, e.Field, cli.Argument(value))})
	}
	return found
}

// missingOverrides finds namespaces that replicas of this cluster use, and for which other clusters
// have policies of their own.
func (f *facts) missingOverrides() (found []finding) {
	type namespace struct{ tenant, name string }
	others := map[namespace][]string{}
	own := map[namespace]bool{}
	for _, e := range f.snapshot.Entries {
		s := e.Scope
		switch {
		case s.Kind != policy.NamespaceKind || s.Cluster == "" || e.Temporary:
		case s.Cluster == f.cluster:
			own[namespace{s.Tenant, s.Namespace}] = true
		default:
			n := namespace{s.Tenant, s.Namespace}
			others[n] = append(others[n], s.Cluster)
		}
	}
	seen := map[namespace]bool{}
	for _, r := range f.replicas {
		for _, s := range r.Subscriptions {
			topic, err := policy.ParseTopic(s.Topic)
			n := namespace{topic.Tenant, topic.Namespace}
			if err != nil || own[n] || seen[n] || len(others[n]) == 0 {
				continue
			}
			seen[n] = true
			found = append(found, finding{hint, "no-override", n.tenant + "/" + n.name,
				fmt.Sprintf("clusters %s have policies of their own for it, and cluster %s has none",
					cli.Names(others[n]), f.cluster),
				"The name of the cluster may be mistyped where the replicas run (THROTTLE_CLUSTER).",
				fmt.Sprintf("correct the name, or: throttle-admin set %s/%s/%s messageRate=RATE", n.tenant, f.cluster, n.name)})
		}
	}
	return found
}
