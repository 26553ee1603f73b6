// Package overcommit finds where more is reserved than there is.
package overcommit

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/policy"
)

// Limits says which limits have more reserved than they let through, of those that a scope's policy has to do
// with. It knows the topics and subscriptions that policies name.
func Limits(cluster string, entries []policy.Entry, scope policy.Scope) string {
	set, _ := policy.NewSet(entries) // what is wrong with it was there before
	named := map[policy.Topic][]string{}
	for _, e := range entries {
		if e.Err == nil && (e.Scope.Kind == policy.TopicKind || e.Scope.Kind == policy.SubscriptionKind) {
			named[e.Scope.Topic] = append(named[e.Scope.Topic], e.Scope.Subscription)
		}
	}
	type unit struct {
		scope policy.Scope
		bytes bool
	}
	limits, reserved := map[unit]float64{}, map[unit]float64{}
	add := func(scope policy.Scope, limit, by policy.Policy) {
		for _, u := range []struct {
			unit
			rate, by policy.Rate
		}{{unit{scope, false}, limit.MessageRate, by.Reserved}, {unit{scope, true}, limit.ByteRate, by.ReservedBytes}} {
			if u.rate.Limited() {
				limits[u.unit] = u.rate.PerSec()
				reserved[u.unit] += u.by.PerSec()
			}
		}
	}
	for topic, names := range named {
		if !concerns(scope, topic) {
			continue
		}
		names = slices.Compact(slices.Sorted(slices.Values(names)))
		if len(names) > 1 {
			names = slices.DeleteFunc(names, func(name string) bool { return name == "" }) // the topic itself
		}
		for _, name := range names {
			e := set.Resolve(cluster, topic, name)
			add(policy.TopicScope(topic), e.Topic, e.Subscription)
			for _, g := range e.Aggregates {
				add(g.Scope, g.Policy, e.Subscription)
			}
		}
	}
	var found []string
	for u, limit := range limits {
		what := "messages"
		if u.bytes {
			what = "bytes"
		}
		others := scope.Topic != (policy.Topic{}) && u.scope.Kind == policy.TopicKind && u.scope.Topic != scope.Topic
		if r := reserved[u]; r > limit && !others {
			found = append(found, fmt.Sprintf("what is reserved of %s comes to %s %s/s, and its limit is %s/s: each subscription gets %s %% of its own",
				u.scope, output.Number(r), what, output.Number(limit), output.Number(100*limit/r)))
		}
	}
	slices.Sort(found)
	return strings.Join(found, "; ")
}

// concerns reports whether a topic, or a budget that it falls under, is a scope's.
func concerns(scope policy.Scope, topic policy.Topic) bool {
	switch scope.Kind {
	case policy.TopicKind, policy.SubscriptionKind:
		return topic.Tenant == scope.Topic.Tenant // the tenant's budget has to do with all of them
	case policy.TenantKind:
		return topic.Tenant == scope.Tenant
	case policy.NamespaceKind:
		return topic.Tenant == scope.Tenant && topic.Namespace == scope.Namespace
	}
	return true
}

// An Excess says from when on all quotas together reserve more than the cluster's capacity. Stores refuse that of what is set, and not of what
// comes back when something temporary ends: a capacity, or a total below what is reserved.
type Excess struct {
	From     time.Time `json:"from,omitzero"` // none: now
	Reserved int64     `json:"reserved"`      // bytes of cost a second, from then on
	Capacity int64     `json:"capacity"`
}

// Quotas returns the first one from now on, nil if there is none.
func Quotas(entries []policy.Entry, now time.Time) *Excess {
	entries = slices.DeleteFunc(slices.Clone(entries), func(e policy.Entry) bool {
		over := e.Temporary && !e.Expires.IsZero() && !e.Expires.After(now)
		return over || e.Scope.Kind != policy.ClusterKind && e.Scope.Kind != policy.TenantKind && e.Scope.Kind != policy.TagKind
	})
	for from := (time.Time{}); ; {
		set, _ := policy.NewSet(entries) // of patterns there are none
		o := &Excess{From: from, Capacity: set.Ratekeeping().Capacity}
		for _, q := range set.Quotas() {
			o.Reserved = min(o.Reserved+q.Reserved, policy.MaxThroughput) // which each is at most
		}
		if o.Capacity > 0 && o.Reserved > o.Capacity {
			return o
		}
		if from = set.NextEnd(); from.IsZero() {
			return nil
		}
		entries = slices.DeleteFunc(entries, func(e policy.Entry) bool { return e.Temporary && e.Expires.Equal(from) })
	}
}

// Say says it to people.
func (o Excess) Say(now time.Time) string {
	when := ""
	if !o.From.IsZero() {
		when = fmt.Sprintf("from %s on, in %s, when something temporary ends, ", o.From.Format(time.RFC3339), output.Left(o.From, now))
	}
	return fmt.Sprintf("%squotas reserve %d bytes of cost a second together, above the cluster's capacity, %d: reserve less, or raise it for good: throttle-admin set cluster capacity=BYTES",
		when, o.Reserved, o.Capacity)
}
