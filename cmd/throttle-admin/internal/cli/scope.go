package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// AddSubscription adds the flag --subscription.
func AddSubscription(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "subscription", "",
		"only this subscription (Kafka: consumer group) of the topic")
}

// ScopeOf parses a command's SCOPE argument together with its flag --subscription, if it has one.
// It warns if a namespace of another cluster looks like a topic without its scheme, and of a scheme
// that no adapter of this project has: it may be mistyped.
func (a *App) ScopeOf(cmd *cobra.Command, text string) (policy.Scope, error) {
	scope, err := policy.ParseScope(text)
	if scope.Kind == policy.NamespaceKind && scope.Cluster != "" && scope.Cluster != a.Cluster {
		a.Warn("%s is the namespace %s/%s in cluster %s, while --cluster is %s; "+
			"a topic needs its scheme: kafka://%[1]s",
			scope, scope.Tenant, scope.Namespace, scope.Cluster, a.Cluster)
	}
	switch scheme := scope.Topic.Scheme; scheme {
	case "", policy.Persistent, policy.NonPersistent, policy.Kafka, policy.Numaflow:
	default:
		a.Warn("%s is not the scheme of Kafka, Pulsar or Numaflow; if it is mistyped, the policy "+
			"applies to nothing", scheme)
	}
	flag := cmd.Flags().Lookup("subscription")
	if flag == nil || !flag.Changed {
		return scope, err
	}
	name := flag.Value.String() // "" may be an unset shell variable: it must not widen the scope
	if err == nil && scope.Kind != policy.TopicKind {
		err = ArgError("subscription", name,
			"not allowed for a "+scope.Kind.String()+": want the URL of a topic as the scope")
	}
	return scope.WithSubscription(name), errors.Join(err, policy.ValidateSubscription(name))
}

// Readable returns an error if what is stored of a section for a scope cannot be read: it must not
// be overwritten unseen.
func Readable(s configstore.Snapshot, section policy.Section, scope policy.Scope) error {
	for _, e := range s.Entries {
		if e.Section() == section && e.Scope == scope && e.Err != nil {
			return Hint(e.Err, map[policy.Section]string{
				policy.PolicySection: "remove the unreadable policy first: " +
					"throttle-admin remove " + Quote(scope),
				policy.QuotaSection: "remove the unreadable quota first: " +
					"throttle-admin quota clear " + Quote(scope),
				policy.QuotaSettingsSection: "remove the unreadable settings first: " +
					"throttle-admin quota settings --clear",
				policy.HistorySettingsSection: "remove the unreadable settings first: " +
					"throttle-admin history settings --clear",
			}[section])
		}
	}
	return nil
}

// Quote returns a scope as an argument for a shell.
func Quote(scope policy.Scope) string { return Argument(scope.String()) }

// Argument returns a text as an argument for a shell.
func Argument(text string) string {
	special := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune(":/._-", r)
	}
	if text != "" && !strings.ContainsFunc(text, special) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
