package policy

import (
	"cmp"
	"errors"
	"net/url"
	"strings"
)

// A Scope is what a policy applies to. It is comparable; the zero Scope is the cluster's default.
type Scope struct {
	Kind         Kind
	Tenant       string // of a tenant or a namespace
	Tag          string // of a tag
	Cluster      string // of a namespace: the only cluster it applies in; "" = all
	Namespace    string
	Pattern      string // of a pattern, a regular expression (RE2); an unreadable scope's text
	Topic        Topic  // of a topic or a subscription
	Subscription string
}

// A Kind of scope. A higher kind is more specific.
type Kind uint8

// The kinds of scopes.
const (
	ClusterKind      Kind = iota // cluster: the default for everything
	TenantKind                   // tenant:NAME: aggregate limits over all its topics, and its quota
	TagKind                      // tag:NAME: the quota of what carries the tag
	NamespaceKind                // tenant/namespace; tenant/cluster/namespace in one cluster
	PatternKind                  // pattern:REGEX, which matches anywhere in a topic's URL
	TopicKind                    // the topic's URL
	SubscriptionKind             // the topic's URL, then ?subscription=NAME
	UnreadableKind               // stored data whose scope cannot be read; applies to nothing
)

var kinds = []string{
	"cluster", "tenant", "tag", "namespace", "pattern", "topic", "subscription", "unreadable",
}

func (k Kind) String() string { return kinds[min(int(k), len(kinds)-1)] }

const (
	clusterText      = "cluster"
	tenantPrefix     = "tenant:"
	tagPrefix        = "tag:"
	patternPrefix    = "pattern:"
	subscriptionMark = "?subscription="
)

// ClusterScope is the default for everything in a cluster.
func ClusterScope() Scope { return Scope{} }

// NamespaceScope is every topic of a namespace, in one cluster or, if cluster is "", in all.
func NamespaceScope(tenant, cluster, namespace string) Scope {
	return Scope{Kind: NamespaceKind, Tenant: tenant, Cluster: cluster, Namespace: namespace}
}

// TenantScope is a tenant: its aggregate limits, and its quota.
func TenantScope(name string) Scope { return Scope{Kind: TenantKind, Tenant: name} }

// TagScope is what carries a tag, on any topic.
func TagScope(name string) Scope { return Scope{Kind: TagKind, Tag: name} }

// PatternScope is every topic whose URL the regular expression matches.
func PatternScope(regex string) Scope { return Scope{Kind: PatternKind, Pattern: regex} }

// TopicScope is one topic, with all its subscriptions.
func TopicScope(t Topic) Scope { return Scope{Kind: TopicKind, Topic: t} }

// SubscriptionScope is one subscription of a topic.
func SubscriptionScope(t Topic, name string) Scope {
	return Scope{Kind: SubscriptionKind, Topic: t, Subscription: name}
}

// WithSubscription returns the scope of a subscription of a topic's scope. For any other scope it
// returns one that Validate refuses.
func (s Scope) WithSubscription(name string) Scope {
	if s.Kind != TopicKind {
		s.Topic = Topic{}
	}
	return SubscriptionScope(s.Topic, name)
}

// String returns the scope as [ParseScope] reads it.
func (s Scope) String() string {
	switch s.Kind {
	case ClusterKind:
		return clusterText
	case TenantKind:
		return tenantPrefix + s.Tenant
	case TagKind:
		return tagPrefix + s.Tag
	case NamespaceKind:
		if s.Cluster != "" {
			return s.Tenant + "/" + s.Cluster + "/" + s.Namespace
		}
		return s.Tenant + "/" + s.Namespace
	case PatternKind:
		return patternPrefix + s.Pattern
	case TopicKind:
		return s.Topic.String()
	case SubscriptionKind:
		return s.Topic.String() + subscriptionMark + url.QueryEscape(s.Subscription)
	}
	return s.Pattern
}

// AppliesTo reports whether a policy of this scope applies to a topic in a cluster, or to one of
// the topic's subscriptions. A tag does not: it is no topic's. It takes up to milliseconds for a
// pattern that no [Set] has.
func (s Scope) AppliesTo(cluster string, t Topic) bool {
	switch s.Kind {
	case ClusterKind:
		return true
	case TenantKind:
		return s.Tenant == t.Tenant
	case NamespaceKind:
		return s.Tenant == t.Tenant && s.Namespace == t.Namespace && (s.Cluster == "" || s.Cluster == cluster)
	case PatternKind:
		p, err := compilePattern(s.Pattern)
		return err == nil && p.regex.MatchString(t.String())
	case TopicKind, SubscriptionKind:
		return s.Topic == t
	}
	return false
}

// MarshalText returns what String returns.
func (s Scope) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is [ParseScope].
func (s *Scope) UnmarshalText(text []byte) error {
	got, err := ParseScope(string(text))
	if err == nil {
		*s = got
	}
	return err
}

// Compare orders scopes by kind, then by what they name.
func (s Scope) Compare(other Scope) int {
	return cmp.Or(
		cmp.Compare(s.Kind, other.Kind),
		cmp.Compare(s.Tag, other.Tag), cmp.Compare(s.Tenant, other.Tenant),
		cmp.Compare(s.Namespace, other.Namespace), cmp.Compare(s.Cluster, other.Cluster),
		cmp.Compare(s.Pattern, other.Pattern),
		cmp.Compare(s.Topic.Tenant, other.Topic.Tenant),
		cmp.Compare(s.Topic.Namespace, other.Topic.Namespace),
		cmp.Compare(s.Topic.Name, other.Topic.Name),
		cmp.Compare(s.Topic.Scheme, other.Topic.Scheme),
		cmp.Compare(s.Subscription, other.Subscription))
}

// ParseScope reads a scope: cluster, tenant:NAME, tag:NAME, tenant/namespace,
// tenant/cluster/namespace, pattern:REGEX, the URL of a topic, or that and ?subscription=NAME. The
// error joins a *[FieldError] for each fault.
func ParseScope(s string) (Scope, error) {
	scope, err := parseScope(s)
	if err == nil {
		err = scope.Validate()
	}
	if err != nil {
		return Scope{}, err
	}
	return scope, nil
}

func parseScope(s string) (Scope, error) {
	parts := strings.Split(s, "/")
	switch {
	case s == clusterText:
		return ClusterScope(), nil
	case strings.HasPrefix(s, patternPrefix):
		return PatternScope(s[len(patternPrefix):]), nil
	case strings.HasPrefix(s, tenantPrefix):
		return TenantScope(s[len(tenantPrefix):]), nil
	case strings.HasPrefix(s, tagPrefix):
		return TagScope(s[len(tagPrefix):]), nil
	case strings.Contains(s, "://"):
		path, query, ok := strings.Cut(s, subscriptionMark)
		t, err := ParseTopic(path)
		if !ok {
			return TopicScope(t), err
		}
		sub, escapeErr := url.QueryUnescape(query)
		if escapeErr != nil {
			return Scope{}, errors.Join(err,
				&FieldError{"subscription", query, "invalid escape: want %25 for a %, as in a URL"})
		}
		if err != nil {
			return Scope{}, errors.Join(err, ValidateSubscription(sub))
		}
		return SubscriptionScope(t, sub), nil
	case len(parts) == 2:
		return NamespaceScope(parts[0], "", parts[1]), nil
	case len(parts) == 3:
		scope := NamespaceScope(parts[0], parts[1], parts[2])
		if scope.Cluster == "" { // which would mean all clusters
			return Scope{}, errors.Join(named("scope.cluster", ""), scope.Validate())
		}
		return scope, nil
	}
	return Scope{}, &FieldError{"scope", s, "invalid scope: want cluster, tenant:NAME, tag:NAME, " +
		"tenant/namespace, tenant/cluster/namespace, pattern:REGEX or the URL of a topic"}
}

// Validate returns every fault of the scope, a *[FieldError] each.
func (s Scope) Validate() error {
	var errs []error
	switch s.Kind {
	case ClusterKind:
	case TenantKind:
		errs = append(errs, named("scope.tenant", s.Tenant))
	case TagKind:
		errs = append(errs, named("scope.tag", s.Tag))
	case NamespaceKind:
		errs = append(errs, named("scope.tenant", s.Tenant), named("scope.namespace", s.Namespace))
		if s.Cluster != "" {
			errs = append(errs, named("scope.cluster", s.Cluster))
		}
	case PatternKind:
		const field = "scope.pattern"
		errs = append(errs, text(field, s.Pattern))
		if s.Pattern == "" {
			errs = append(errs, &FieldError{field, "",
				"empty: want a regular expression, or the scope cluster for everything"})
		} else if _, err := compilePattern(s.Pattern); err != nil {
			errs = append(errs, err)
		}
	case TopicKind:
		errs = append(errs, s.Topic.Validate())
	case SubscriptionKind:
		if s.Topic == (Topic{}) { // from WithSubscription
			return &FieldError{"subscription", s.Subscription,
				"not allowed here: want the URL of a topic as the scope"}
		}
		errs = append(errs, s.Topic.Validate(), ValidateSubscription(s.Subscription))
	default:
		errs = append(errs, &FieldError{"scope", s.Pattern, "unreadable: remove it"})
	}
	if s.Kind != SubscriptionKind && s.Subscription != "" {
		errs = append(errs, &FieldError{"subscription", s.Subscription,
			"not allowed for a " + s.Kind.String() + ": want the URL of a topic as the scope"})
	}
	return errors.Join(errs...)
}

// ValidateSubscription reports what is wrong with the name of a subscription; "" is refused.
func ValidateSubscription(name string) error {
	if name == "" {
		return &FieldError{"subscription", "", "empty: want a name"}
	}
	return text("subscription", name)
}

func kindNames(kinds []Kind) (names []string) {
	for _, k := range kinds {
		names = append(names, k.String())
	}
	return names
}
