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
//	kafka://public/default/orders           Kafka has only the name: users choose the rest
//	numaflow://prod/fraud-pipeline/score    Kubernetes namespace, pipeline, vertex
type Topic struct {
	Scheme    string
	Tenant    string
	Namespace string
	Name      string
}

// The schemes whose names follow the rules of their broker. Any other well-formed scheme is valid
// too, so that an adapter for another broker needs no change here.
const (
	Persistent    = "persistent"
	NonPersistent = "non-persistent"
	Kafka         = "kafka"
	Numaflow      = "numaflow"
)

// isPulsar reports whether topics of a scheme have partitions and names of Pulsar's version 1.
func isPulsar(scheme string) bool { return scheme == Persistent || scheme == NonPersistent }

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

// ParseTopic reads the URL of a topic. A partition of a Pulsar topic is that topic: -partition-N is
// dropped. A Pulsar name of version 1, property/cluster/namespace/name, is the topic
// property/namespace/name: the cluster is that of the reader, so that the policy of the namespace
// in one cluster (property/cluster/namespace) applies there.
// The error joins a *[FieldError] for each fault.
func ParseTopic(s string) (Topic, error) {
	scheme, path, ok := strings.Cut(s, "://")
	if !ok {
		return Topic{}, &FieldError{"topic", s,
			"no scheme: want scheme://tenant/namespace/name, such as kafka://public/default/orders"}
	}
	schemeErr := validateScheme(scheme)
	parts := strings.Split(path, "/")
	var clusterErr error
	if isPulsar(scheme) && len(parts) == 4 {
		clusterErr = named("topic.cluster", parts[1])
		parts = slices.Delete(parts, 1, 2)
	}
	if len(parts) != 3 {
		if schemeErr != nil {
			scheme = "scheme"
		}
		reason := fmt.Sprintf("%d parts after the scheme: want %s://tenant/namespace/name",
			len(parts), scheme)
		return Topic{}, errors.Join(schemeErr, &FieldError{"topic", s, reason})
	}
	t := Topic{scheme, parts[0], parts[1], parts[2]}
	if isPulsar(scheme) {
		t.Name = partition.ReplaceAllString(t.Name, "")
	}
	if err := errors.Join(clusterErr, t.Validate()); err != nil {
		return Topic{}, err
	}
	return t, nil
}

// schemeSyntax is that of RFC 3986 in lower case, so that a topic has one spelling.
const schemeSyntax = `[a-z][-+.a-z0-9]*`

var (
	wellFormed = regexp.MustCompile(`^` + schemeSyntax + `$`)
	partition  = regexp.MustCompile(`(-partition-[0-9]+)+$`)
	name       = regexp.MustCompile(`^[-=:.\w]+$`) // Pulsar's rule for tenants and namespaces
	kafkaName  = regexp.MustCompile(`^[-.\w]+$`)
	dnsLabel   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
)

func validateScheme(scheme string) error {
	if len(scheme) > 63 || !wellFormed.MatchString(scheme) {
		return &FieldError{"topic.scheme", scheme,
			"invalid scheme: want lower-case letters, digits, '+', '-' and '.', such as kafka"}
	}
	return nil
}

// Validate returns every fault of the topic, a *[FieldError] each.
func (t Topic) Validate() error {
	if t.Scheme == Numaflow {
		return errors.Join(label("topic.tenant", t.Tenant), label("topic.namespace", t.Namespace),
			label("topic.name", t.Name))
	}
	errs := []error{
		validateScheme(t.Scheme), named("topic.tenant", t.Tenant),
		named("topic.namespace", t.Namespace),
	}
	fault := func(reason string) { errs = append(errs, &FieldError{"topic.name", t.Name, reason}) }
	switch {
	case t.Name == "":
		fault("empty: want scheme://tenant/namespace/name")
	case t.Scheme == Kafka:
		if dots(t.Name) || len(t.Name) > 249 || !kafkaName.MatchString(t.Name) {
			fault("invalid name of a Kafka topic: want 1 to 249 letters, digits, '.', '_' " +
				"and '-', other than . and ..")
		}
	default:
		errs = append(errs, text("topic.name", t.Name))
		if strings.Contains(t.Name, "/") || strings.Contains(t.Name, subscriptionMark) {
			fault("invalid name: want a name without / and " + subscriptionMark)
		}
		if isPulsar(t.Scheme) && partition.MatchString(t.Name) {
			fault("partition of a topic: want the name without -partition-N")
		}
	}
	return errors.Join(errs...)
}

// maxText bounds names and patterns, in bytes.
const maxText = 1024

// named checks the name of a tenant, cluster or namespace.
func named(field, s string) error {
	switch {
	case s == "":
		return &FieldError{field, s, "empty: want a name"}
	case dots(s) || len(s) > 255 || !name.MatchString(s):
		return &FieldError{field, s,
			"invalid name: want 1 to 255 letters, digits and -=:._, other than . and .."}
	}
	return nil
}

// dots reports whether a name means another folder in a path.
func dots(s string) bool { return s == "." || s == ".." }

// label checks a name of Kubernetes.
func label(field, s string) error {
	if len(s) > 63 || !dnsLabel.MatchString(s) {
		return &FieldError{field, s, "invalid Kubernetes name: want at most 63 lower-case " +
			"letters, digits and '-', with no '-' at either end"}
	}
	return nil
}

// text checks free text.
func text(field, s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return &FieldError{field, s, "control characters or invalid UTF-8: want printable text"}
	}
	if len(s) > maxText {
		return &FieldError{field, s, fmt.Sprintf("too long: want at most %d bytes", maxText)}
	}
	return nil
}
