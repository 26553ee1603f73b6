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
// It warns if a namespace of another cluster looks like a topic without its scheme.
func (a *App) ScopeOf(cmd *cobra.Command, text string) (policy.Scope, error) {
	scope, err := policy.ParseScope(text)
	if scope.Kind == policy.NamespaceKind && scope.Cluster != "" && scope.Cluster != a.Cluster {
		a.Warn("%s is the namespace %s/%s in cluster %s, while --cluster is %s; "+
			"a topic needs its scheme: kafka://%[1]s",
			scope, scope.Tenant, scope.Namespace, scope.Cluster, a.Cluster)
	}
	flag := cmd.Flags().Lookup("subscription")
	if flag == nil || !flag.Changed {
		return scope, err
	}
	name := flag.Value.String() // "" may be an unset shell variable: it must not widen the scope
	if err == nil && scope.Kind != policy.TopicKind {
		err = &policy.FieldError{Field: "subscription", Value: name,
			Reason: "needs a topic, not a " + scope.Kind.String() + ": want the topic's URL"}
	}
	return scope.WithSubscription(name), errors.Join(err, policy.ValidateSubscription(name))
}

// Readable returns an error if a scope has a stored policy that cannot be read: it must not be
// overwritten unseen.
func Readable(s configstore.Snapshot, scope policy.Scope) error {
	for _, e := range s.Entries {
		if e.Scope == scope && e.Err != nil {
			remove := "remove the unreadable policy first: throttle-admin remove " + Quote(scope)
			return &hintError{e.Err, remove}
		}
	}
	return nil
}

// Quote returns a scope as an argument for a shell.
func Quote(scope policy.Scope) string {
	text := scope.String()
	special := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune(":/._-", r)
	}
	if !strings.ContainsFunc(text, special) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
