// Package overcommit finds what policies reserve in vain: more than limits and quotas allow, and of
// limits that are not shared by it.
package overcommit

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Reservation is a limit of which more is reserved than it allows. Rates are in messages or bytes
// a second.
type Reservation struct {
	Scope           policy.Scope // of the limit
	Bytes           bool
	Reserved, Limit float64
}

// String describes it without a full stop.
func (r Reservation) String() string {
	what := "messages"
	if r.Bytes {
		what = "bytes"
	}
	return fmt.Sprintf("the reservations of %s add up to %s %s/s, "+
		"more than its limit, %s/s: each subscription gets %s %% of its reservation",
		r.Scope, output.Number(r.Reserved), what, output.Number(r.Limit), output.Number(100*r.Limit/r.Reserved))
}

// Limits describes the Reservations of a scope; "" if there are none.
func Limits(cluster string, entries []policy.Entry, scope policy.Scope) string {
	return joined(Reservations(cluster, entries, scope))
}

func joined[S fmt.Stringer](found []S) string {
	var texts []string
	for _, f := range found {
		texts = append(texts, f.String())
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// Reservations returns the limits of which more is reserved than they allow, among those that a
// scope's policy affects. It considers the topics and subscriptions that policies name.
func Reservations(cluster string, entries []policy.Entry, scope policy.Scope) (found []Reservation) {
	type unit struct {
		scope policy.Scope
		bytes bool
	}
	limits, reserved := map[unit]float64{}, map[unit]float64{}
	add := func(scope policy.Scope, limit, by policy.Policy) {
		for _, u := range []struct {
			unit
			rate, by policy.Rate
		}{
			{unit{scope, false}, limit.MessageRate, by.Reserved},
			{unit{scope, true}, limit.ByteRate, by.ReservedBytes},
		} {
			if u.rate.Limited() {
				limits[u.unit] = u.rate.PerSec()
				reserved[u.unit] += u.by.PerSec()
			}
		}
	}
	for at, e := range concerned(cluster, entries, scope) {
		add(policy.TopicScope(at.Topic), e.Topic, e.Subscription)
		for _, g := range e.Aggregates {
			add(g.Scope, g.Policy, e.Subscription)
		}
	}
	for u, limit := range limits {
		other := scope.Topic != (policy.Topic{}) &&
			u.scope.Kind == policy.TopicKind && u.scope.Topic != scope.Topic
		if r := reserved[u]; r > limit && !other {
			found = append(found, Reservation{u.scope, u.bytes, r, limit})
		}
	}
	slices.SortFunc(found, func(a, b Reservation) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// A NoEffect is a weight or a reservation, or both, that a limit is not shared by.
type NoEffect struct {
	At     policy.Scope // that has them
	Fields []string
	Limit  policy.Scope
	Mode   policy.SharingMode
}

// String describes it without a full stop.
func (n NoEffect) String() string {
	return fmt.Sprintf("%s of %s: no effect on the limit of %s, whose sharing.mode is %s",
		strings.Join(n.Fields, " and "), n.At, n.Limit, n.Mode)
}

// Ignored describes the NoEffects of a scope; "" if there are none.
func Ignored(cluster string, entries []policy.Entry, scope policy.Scope) string {
	return joined(NoEffects(cluster, entries, scope))
}

// NoEffects returns the weights and reservations that a limit's sharing mode does not share it by,
// among those that a scope's policy affects.
func NoEffects(cluster string, entries []policy.Entry, scope policy.Scope) (found []NoEffect) {
	for at, e := range concerned(cluster, entries, scope) {
		var fields []string
		if e.Subscription.Weight != nil {
			fields = append(fields, "weight")
		}
		if e.Subscription.Reserved.Limited() {
			fields = append(fields, "reserved")
		}
		if len(fields) == 0 || scope.Topic != (policy.Topic{}) && at.Topic != scope.Topic {
			continue
		}
		add := func(limit policy.Scope, p policy.Policy, modes policy.Modes) {
			mode := p.WithDefaults().Sharing.Mode
			if p.MessageRate.Limited() && mode != policy.Fair && !modes.Messages.IsShadow() {
				found = append(found, NoEffect{at, fields, limit, mode})
			}
		}
		add(policy.TopicScope(at.Topic), e.Topic, e.TopicModes)
		for _, g := range e.Aggregates {
			add(g.Scope, g.Policy, g.Modes)
		}
	}
	slices.SortFunc(found, func(a, b NoEffect) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// concerned returns the subscriptions that policies name, or the topic where they name none of its
// subscriptions, as far as a scope's policy affects them or their limits, and their policies.
func concerned(
	cluster string, entries []policy.Entry, scope policy.Scope,
) iter.Seq2[policy.Scope, policy.Effective] {
	set, _ := policy.NewSet(entries) // invalid entries are left out
	named := map[policy.Topic][]string{}
	for _, e := range entries {
		ofTopic := e.Scope.Kind == policy.TopicKind || e.Scope.Kind == policy.SubscriptionKind
		if e.Err == nil && ofTopic && concerns(scope, e.Scope.Topic) {
			named[e.Scope.Topic] = append(named[e.Scope.Topic], e.Scope.Subscription)
		}
	}
	return func(yield func(policy.Scope, policy.Effective) bool) {
		for topic, names := range named {
			names = slices.Compact(slices.Sorted(slices.Values(names)))
			if len(names) > 1 && names[0] == "" { // the topic itself
				names = names[1:]
			}
			for _, name := range names {
				at := policy.TopicScope(topic)
				if name != "" {
					at = policy.SubscriptionScope(topic, name)
				}
				if !yield(at, set.Resolve(cluster, topic, name)) {
					return
				}
			}
		}
	}
}

// concerns reports whether a scope's policy affects a topic or an aggregate limit of that topic.
func concerns(scope policy.Scope, topic policy.Topic) bool {
	switch scope.Kind {
	case policy.TopicKind, policy.SubscriptionKind:
		return topic.Tenant == scope.Topic.Tenant // by the tenant's aggregate limit
	case policy.TenantKind:
		return topic.Tenant == scope.Tenant
	case policy.NamespaceKind:
		return topic.Tenant == scope.Tenant && topic.Namespace == scope.Namespace
	}
	return true
}

// An Excess is what all quotas together reserve when that is more than the cluster's capacity.
// Stores refuse to store an excess, but one can arise when a temporary capacity, or a temporary
// total below a reservation, expires.
type Excess struct {
	From     time.Time `json:"from,omitzero"` // when it begins; zero means now
	Reserved int64     `json:"reserved"`      // bytes of cost a second
	Capacity int64     `json:"capacity"`
}

// Quotas returns the first excess from now on; nil if there is none.
func Quotas(entries []policy.Entry, now time.Time) *Excess {
	entries = slices.DeleteFunc(slices.Clone(entries), func(e policy.Entry) bool {
		expired := e.Temporary && !e.Expires.IsZero() && !e.Expires.After(now)
		return expired || e.Section() == policy.PolicySection
	})
	for from := (time.Time{}); ; {
		set, _ := policy.NewSet(entries) // without patterns, there are no errors
		o := &Excess{From: from}
		o.Reserved, o.Capacity = configstore.Reserved(entries)
		if o.Capacity > 0 && o.Reserved > o.Capacity {
			return o
		}
		if from = set.NextEnd(); from.IsZero() {
			return nil
		}
		entries = slices.DeleteFunc(entries, func(e policy.Entry) bool {
			return e.Temporary && e.Expires.Equal(from)
		})
	}
}

// Text describes the excess and what to do.
func (o Excess) Text(now time.Time) string {
	when := ""
	if !o.From.IsZero() {
		when = fmt.Sprintf("from %s (in %s), when a temporary value expires, ",
			o.From.Format(time.RFC3339), output.Left(o.From, now))
	}
	return fmt.Sprintf("%squotas together reserve %d bytes of cost a second, more than the "+
		"cluster's capacity, %d: reserve less, or raise the capacity permanently: "+
		"throttle-admin quota settings capacity=BYTES",
		when, o.Reserved, o.Capacity)
}
