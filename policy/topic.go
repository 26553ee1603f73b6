package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Topic is what messages are read from: Scheme://Tenant/Namespace/Name. It is comparable.
//
//	persistent://public/default/orders      Pulsar; also non-persistent
//	kafka://public/default/orders           Kafka, of which the tenant and the namespace are ours
//	numaflow://prod/fraud-pipeline/score    Kubernetes namespace, pipeline, vertex
type Topic struct {
	Scheme    string
	Tenant    string
	Namespace string
	Name      string
}

// The schemes of topics.
const (
	Persistent    = "persistent"
	NonPersistent = "non-persistent"
	Kafka         = "kafka"
	Numaflow      = "numaflow"
)

var schemes = []string{Persistent, NonPersistent, Kafka, Numaflow}

// String returns the topic as [ParseTopic] reads it.
func (t Topic) String() string {
	return t.Scheme + "://" + t.Tenant + "/" + t.Namespace + "/" + t.Name
}

// MarshalText returns what String returns.
func (t Topic) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is [ParseTopic].
func (t *Topic) UnmarshalText(text []byte) error {
	got, err := ParseTopic(string(text))
	if err == nil {
		*t = got
	}
	return err
}

// ParseTopic reads the URL of a topic. For Pulsar, a partition is its topic
// (-partition-N is dropped), and a V1 name property/cluster/namespace/name is the topic
// property/namespace/name: which cluster it is in is said by the one who reads it, so that a
// namespace's override in one cluster (property/cluster/namespace) applies to it there.
// The error joins a *[FieldError] for each fault.
func ParseTopic(s string) (Topic, error) {
	scheme, path, ok := strings.Cut(s, "://")
	if !ok {
		return Topic{}, &FieldError{"topic", s, "has no scheme: write kafka://tenant/namespace/name, persistent://... or numaflow://..."}
	}
	parts := strings.Split(path, "/")
	pulsar := scheme == Persistent || scheme == NonPersistent
	var clusterErr error
	if pulsar && len(parts) == 4 {
		clusterErr = named("topic.cluster", parts[1])
		parts = slices.Delete(parts, 1, 2)
	}
	if len(parts) != 3 {
		schemeErr := schemeError(scheme)
		if schemeErr != nil {
			scheme = "scheme"
		}
		return Topic{}, errors.Join(schemeErr, &FieldError{"topic", s, fmt.Sprintf("has %d parts behind the scheme: write %s://tenant/namespace/name", len(parts), scheme)})
	}
	t := Topic{scheme, parts[0], parts[1], parts[2]}
	if pulsar {
		t.Name = partition.ReplaceAllString(t.Name, "")
	}
	if err := errors.Join(clusterErr, t.Validate()); err != nil {
		return Topic{}, err
	}
	return t, nil
}

func schemeError(scheme string) error {
	if slices.Contains(schemes, scheme) {
		return nil
	}
	return &FieldError{"topic.scheme", scheme, "is unknown: use persistent, non-persistent, kafka or numaflow"}
}

var (
	partition = regexp.MustCompile(`(-partition-[0-9]+)+$`)
	name      = regexp.MustCompile(`^[-=:.\w]+$`) // Pulsar's rule for tenants, clusters and namespaces
	kafkaName = regexp.MustCompile(`^[-.\w]+$`)
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
)

// Validate returns every fault of the topic, a *[FieldError] each.
func (t Topic) Validate() error {
	if t.Scheme == Numaflow {
		return errors.Join(label("topic.tenant", t.Tenant), label("topic.namespace", t.Namespace), label("topic.name", t.Name))
	}
	errs := []error{schemeError(t.Scheme), named("topic.tenant", t.Tenant), named("topic.namespace", t.Namespace)}
	const field = "topic.name"
	switch {
	case t.Name == "":
		errs = append(errs, &FieldError{field, t.Name, "is empty: write scheme://tenant/namespace/name"})
	case t.Scheme == Kafka && (t.Name == "." || t.Name == ".."):
		errs = append(errs, &FieldError{field, t.Name, "is no name for a Kafka topic"})
	case t.Scheme == Kafka && len(t.Name) > 249:
		errs = append(errs, &FieldError{field, t.Name, "is longer than the 249 characters that Kafka allows"})
	case t.Scheme == Kafka && !kafkaName.MatchString(t.Name):
		errs = append(errs, &FieldError{field, t.Name, "has characters other than the letters, digits, '.', '_' and '-' that Kafka allows"})
	default:
		errs = append(errs, text(field, t.Name))
		if strings.Contains(t.Name, "/") || strings.Contains(t.Name, subscriptionMark) {
			errs = append(errs, &FieldError{field, t.Name, "contains '/' or " + subscriptionMark})
		}
		if t.Scheme != Kafka && partition.MatchString(t.Name) {
			errs = append(errs, &FieldError{field, t.Name, "names a partition: leave -partition-N out"})
		}
	}
	return errors.Join(errs...)
}

// maxText bounds names and patterns, in bytes.
const maxText = 1024

// named checks a tenant, cluster or namespace. It returns nil, not a nil *FieldError.
func named(field, s string) error {
	switch {
	case s == "":
		return &FieldError{field, s, "is empty"}
	case len(s) > 255:
		return &FieldError{field, s, "is longer than 255 characters"}
	case !name.MatchString(s):
		return &FieldError{field, s, "has characters other than letters, digits and -=:._"}
	case s == "." || s == "..":
		return &FieldError{field, s, "is part of a path, and no name that a broker could have: write tenant/namespace with names"}
	}
	return nil
}

func label(field, s string) error {
	if len(s) > 63 || !dnsLabel.MatchString(s) {
		return &FieldError{field, s, "is no Kubernetes name: use at most 63 lower-case letters, digits and '-', with no '-' at either end"}
	}
	return nil
}

// text checks free text.
func text(field, s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return &FieldError{field, s, "has control characters or is not UTF-8"}
	}
	if len(s) > maxText {
		return &FieldError{field, s, fmt.Sprintf("is longer than %d bytes", maxText)}
	}
	return nil
}
