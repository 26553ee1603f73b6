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
	cmd.Flags().StringVar(name, "subscription", "", "only this subscription (Kafka: consumer group) of the topic")
}

// ScopeOf reads the SCOPE of a command, and its --subscription if it has one. It warns of what looks like a slip.
func (a *App) ScopeOf(cmd *cobra.Command, text string) (policy.Scope, error) {
	scope, err := policy.ParseScope(text)
	if scope.Kind == policy.NamespaceKind && scope.Cluster != "" && scope.Cluster != a.Cluster {
		a.Warn("%s is the namespace %s/%s in cluster %s, while --cluster is %s; a topic is written kafka://%[1]s",
			scope, scope.Tenant, scope.Namespace, scope.Cluster, a.Cluster)
	}
	flag := cmd.Flags().Lookup("subscription")
	if flag == nil || !flag.Changed {
		return scope, err
	}
	name := flag.Value.String() // empty where a shell's variable is not set: that must not widen the scope
	if err == nil && scope.Kind != policy.TopicKind {
		err = &policy.FieldError{Field: "subscription", Value: name, Reason: "belongs to a topic, not to a " + scope.Kind.String() + ": name the topic by its URL"}
	}
	return scope.WithSubscription(name), errors.Join(err, policy.ValidateSubscription(name))
}

// Readable refuses to write over a policy of which nobody knows what it says.
func Readable(s configstore.Snapshot, scope policy.Scope) error {
	for _, e := range s.Entries {
		if e.Scope == scope && e.Err != nil {
			return &hintError{e.Err, "remove what cannot be read first: throttle-admin remove " + Quote(scope)}
		}
	}
	return nil
}

// Quote writes a scope as a shell reads it.
func Quote(scope policy.Scope) string {
	text := scope.String()
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:/._-") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
