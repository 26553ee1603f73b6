// Package policies holds the commands that set, show and remove policies, and Pulsar's own
// commands for the same.
package policies

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{
		newSetMsgRateCommand(a), newSetCommand(a), newPauseCommand(a), newResumeCommand(a),
		newResetCommand(a), newRemoveCommand(a),
		newGetCommand(a), newListCommand(a), newNamespacesCommand(a), newBrokersCommand(a),
	}
}

// set sets the fields of p for a scope and removes the fields of unset, so that they are
// inherited. It reports faults, which its caller has found in the arguments, together with its
// own.
func set(
	a *cli.App, cmd *cobra.Command, f change.SetFlags, scopeText string,
	p policy.Policy, unset []string, faults ...error,
) error {
	scope, scopeErr := a.ScopeOf(cmd, scopeText)
	faults = slices.Insert(faults, 0, scopeErr)
	if scopeErr == nil {
		faults = append(faults, p.Validate(scope))
	} else { // some fields cannot be validated without a scope
		rest := policy.Without(p, "priority", "aggregate")
		faults = append(faults, rest.Validate(policy.ClusterScope()))
	}
	ttl, err := f.TTL(cmd, unset...)
	faults = append(faults, err)
	if err := errors.Join(faults...); err != nil {
		return cli.Usage(err)
	}
	return change.Run(a, cmd, f.Flags, change.Plan{
		Review: "get " + cli.Quote(scope),
		Urgent: p.IsPaused(),
		Notes: func(after []policy.Entry) (notes []string) {
			if !policy.IsZero(policy.Only(p, "reserved", "reservedBytes", "messageRate", "byteRate")) {
				notes = append(notes, overcommit.Limits(a.Cluster, after, scope))
			}
			if !policy.IsZero(policy.Only(p, "weight", "reserved", "messageRate", "sharing.mode")) {
				notes = append(notes, overcommit.Ignored(a.Cluster, after, scope))
			}
			if slices.Contains(unset, "paused") {
				notes = append(notes, stillPaused(a, after, scope))
			}
			return notes
		},
		Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
			if err := cli.Readable(s, policy.PolicySection, scope); err != nil {
				return nil, err
			}
			if ttl != 0 {
				return s.SetFor(scope, p, ttl), nil
			}
			return s.SetAndUnset(scope, p, unset...), nil
		},
	})
}

// stillPaused returns what still pauses a resumed scope, or keeps it from being paused; "" if
// nothing does.
func stillPaused(a *cli.App, entries []policy.Entry, scope policy.Scope) string {
	cluster, topic := a.Cluster, scope.Topic
	if scope.Kind < policy.TopicKind { // take any topic of the scope, and only scopes as wide as it
		cluster = cmp.Or(scope.Cluster, cluster)
		topic = policy.Topic{
			Scheme: policy.Kafka, Tenant: cmp.Or(scope.Tenant, "any"),
			Namespace: cmp.Or(scope.Namespace, "any"), Name: "any",
		}
		entries = slices.DeleteFunc(slices.Clone(entries), func(e policy.Entry) bool {
			namespaces := scope.Kind == policy.NamespaceKind && e.Scope.Kind == policy.NamespaceKind
			return e.Scope.Kind > policy.ClusterKind && !namespaces
		})
	}
	set, _ := policy.NewSet(entries) // invalid entries are left out
	e := set.Explain(cluster, topic, scope.Subscription)
	switch from, decided := e.Sources["paused"]; {
	case e.Subscription.IsPaused():
		return fmt.Sprintf("still paused by %s: throttle-admin resume %[1]s", cli.Quote(from))
	case decided && from == scope:
		return fmt.Sprintf("%s keeps its own paused=false", scope)
	}
	return ""
}

func newSetMsgRateCommand(a *cli.App) *cobra.Command {
	var f change.SetFlags
	cmd := &cobra.Command{
		Use:   "set-msg-rate SCOPE RATE",
		Short: "Limit the messages a second of each topic of a scope",
		Long: `Limit the messages a second that each topic of a scope dispatches, over all its
subscriptions and their replicas; with --subscription, limit that subscription of the topic in
addition.

RATE is 1000, 1000/s, 10000/1m or 1/6s; 0 means not throttled. To stop a scope, pause it.`,
		Example: `  throttle-admin set-msg-rate cluster 1000
  throttle-admin set-msg-rate public/default 10000/1m
  throttle-admin set-msg-rate 'pattern:^kafka://public/.*/audit-' 1/6s
  throttle-admin set-msg-rate kafka://public/default/orders 200 --subscription billing --for 2h`,
		Args: cli.Args("SCOPE", "RATE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rate, err := policy.ParseRate(args[1])
			return set(a, cmd, f, args[0], policy.Policy{MessageRate: rate}, nil, err)
		},
	}
	f.Add(cmd)
	return cmd
}

func newSetCommand(a *cli.App) *cobra.Command {
	var f change.SetFlags
	cmd := &cobra.Command{
		Use:   "set SCOPE FIELD=VALUE...",
		Short: "Set fields of a scope's policy",
		Long: `Set fields of a scope's policy; the others keep their values. FIELD= unsets a
field, so that the scope inherits it.

` + change.FieldHelp(policy.PolicySection),
		Example: `  throttle-admin set public/default byteRate=1MiB/s burst=100
  throttle-admin set kafka://public/default/orders mode=shadow --for 1h
  throttle-admin set kafka://public/default/orders weight=4 reserved=400 --subscription billing
  throttle-admin set kafka://public/default/orders messageRate=1000 ramp.from=100 ramp.over=1m
  throttle-admin set tenant:acme messageRate=5000
  throttle-admin set kafka://public/default/orders messageRate= --dry-run`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("SCOPE or FIELD=VALUE: missing")
			}
			return nil
		},
		ValidArgsFunction: change.CompleteFields(policy.PolicySection, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			fields, unset, err := change.ParseFields(policy.PolicySection, args[1:])
			return set(a, cmd, f, args[0], fields.(policy.Policy), unset, err)
		},
	}
	f.Add(cmd)
	return cmd
}

func newPauseCommand(a *cli.App) *cobra.Command {
	var f change.SetFlags
	cmd := &cobra.Command{
		Use:   "pause SCOPE",
		Short: "Stop dispatching messages of a scope until it is resumed",
		Long: `Stop dispatching messages of a scope until it is resumed. Messages that consumers
have received already are not affected. To keep one topic of a paused namespace running, set
paused=false for that topic.`,
		Example: `  throttle-admin pause public/default --for 10m
  throttle-admin pause kafka://public/default/orders --subscription billing`,
		Args: cli.Args("SCOPE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			paused := true
			return set(a, cmd, f, args[0], policy.Policy{Paused: &paused}, nil)
		},
	}
	f.Add(cmd)
	return cmd
}

func newResumeCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	var subscription string
	cmd := &cobra.Command{
		Use:   "resume SCOPE",
		Short: "Resume a scope that was paused",
		Long: `Resume a scope that was paused. If a wider scope is paused too, this scope stays
paused, with a warning. A scope with paused=false, which a wider scope cannot pause, keeps this
value.`,
		Example: `  throttle-admin resume public/default
  throttle-admin resume kafka://public/default/orders --subscription billing`,
		Args: cli.Args("SCOPE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := a.ScopeOf(cmd, args[0])
			if err != nil {
				return cli.Usage(err)
			}
			return change.Run(a, cmd, f, change.Plan{
				Review: "get " + cli.Quote(scope),
				Notes:  func(after []policy.Entry) []string { return []string{stillPaused(a, after, scope)} },
				Make: func(s configstore.Snapshot) (changes []configstore.Change, err error) {
					for _, e := range s.Entries {
						if p := e.Policy(); e.Scope == scope && p.IsPaused() {
							changes = append(changes, configstore.Change{
								Key: configstore.KeyOf(e), Settings: policy.Without(p, "paused"),
							})
						}
					}
					return changes, cli.Readable(s, policy.PolicySection, scope)
				},
			})
		},
	}
	cli.AddSubscription(cmd, &subscription)
	f.Add(cmd)
	return cmd
}
