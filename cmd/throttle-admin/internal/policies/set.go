// Package policies holds the commands that set, show and remove policies, and Pulsar's own
// commands for the same.
package policies

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{
		newSetMsgRateCommand(a), newSetCommand(a), newPauseCommand(a), newResumeCommand(a), newRemoveCommand(a),
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
		part := p
		if p.TotalThroughput == nil { // the total may be stored already
			part.ReservedThroughput = nil
		}
		faults = append(faults, part.Validate(scope))
	} else { // some fields cannot be validated without a scope
		faults = append(faults, p.Without("priority").Without("aggregate").Validate(policy.ClusterScope()))
	}
	ttl, err := f.TTL(cmd)
	faults = append(faults, err, change.CheckTemporary(p, ttl))
	if ttl != 0 && len(unset) > 0 {
		faults = append(faults, errors.New("for: a field cannot be unset temporarily: "+
			"want FIELD=VALUE, or no --for"))
	}
	if err := errors.Join(faults...); err != nil {
		return cli.Usage(err)
	}
	return change.Run(a, cmd, f.Flags, change.Plan{
		Review: "get " + cli.Quote(scope),
		Note: func(after []policy.Entry) string {
			limits := []string{"reserved", "reservedBytes", "messageRate", "byteRate"}
			if slices.ContainsFunc(limits, p.Has) {
				if over := overcommit.Limits(a.Cluster, after, scope); over != "" {
					return over
				}
			}
			if !slices.Contains(unset, "paused") {
				return ""
			}
			return stillPaused(a, after, scope)
		},
		Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
			if err := cli.Readable(s, scope); err != nil {
				return nil, err
			}
			if ttl != 0 {
				return s.SetFor(scope, p, ttl), nil
			}
			changes := s.Set(scope, p)
			for _, field := range unset {
				changes[0].Policy = changes[0].Policy.Without(field)
			}
			temporary := slices.DeleteFunc(s.Unset(scope, unset...), func(c configstore.Change) bool {
				return c.Field == ""
			})
			return append(changes, temporary...), nil
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

  messageRate       messages: 1000, 10000/1m, 1/6s; 0 = not throttled
  byteRate          bytes: 1048576, 1MiB/s, 100kB/s; 0 = not throttled
  burst, byteBurst  messages and bytes that an idle limit may save up; default 0
  round             how long everybody's batches together last, 10ms to 10s; default 100ms
  mode              enforce, or shadow: count what would wait and let it through
  paused            true: dispatch nothing
  throttleCaughtUp  true: throttle who has no backlog, too; default false
  caughtUpBacklog   the largest backlog, in messages, of who has caught up; default 100
  sharing           of messages: allocated (default); strict: one every 1/rate, nothing saved up;
                    split: to each replica the same part; groups: to each group of workers
  maxReserved       strict: slots allocated ahead, over all processes; default 64
  wait              strict: who finds all of them allocated: backoff (default), or queue: in his turn
  permitExpiry      strict: how late a slot may be used, from 2ms; default a hundredth of the period
  replicas          split: how many there are, without a permit store; 0 = they agree on it (default)
  groups            groups: their names, as in eu,us; a process says which it is in
  keepBack          groups: the part of its own that others leave to each, 0 to 1; default 0.2
  poolTTL           split, groups: a replica silent for that long does not count; default 5s
  rampOver          how long the rates take to rise from rampFrom, 1s to 24h; default: no ramp
  rampFrom          messages to begin with: 100, 600/1m; default the rate / seconds of rampOver
  rampFromBytes     the same in bytes
  ramp              scheduled: with the time (default); relaxed: while somebody asks; none
  rampTTL           silence after which a ramp begins again, to 1h; default 3m
  onOutage      while permits cannot be allocated: share (go on at the last share), stop or open
  weight            of a subscription in the limits that it shares, 0.1 to 10; default 1
  reserved          messages of a limit that a subscription gets before the rest is shared by weight
  reservedBytes     the same in bytes
  aggregate         of the cluster or a namespace, true: its rates are one budget over all its topics
  busy              what busy answers, as reported by handlers, do: fraction (default), tchannel or none
  busyOutcomes      outcomes that are busy: of busy (default), failed and timeout, as in busy,timeout
  busyMinRate       messages a second that they leave; default 1
  busyTolerance     fraction: share of busy answers that is nothing yet; default 0.01
  busyRecoverRate   tchannel: times itself that the limit grows by each second; default 3
  busyRecoverValue  tchannel: messages a second that it grows by instead
  reservedThroughput, totalThroughput
                    of tenant:NAME or tag:NAME: its throughput quota, bytes of cost a second, rounded up to
                    pages of 4096; see throttle-admin quota
  quotaMode         of a tenant, a tag or the cluster: enforce, or shadow: find rates, limit nothing
  quotaShareBy      of the cluster: how a saturated backend is shared: by quota (default) or current
  capacity          of the cluster: cost a second that all backends bear, which quotas reserve of
  zones             of the cluster: those that backends may report, as in a,b; default any
  ignoreZones       of the cluster: the worst zones, which limit nobody; default 1
  maxInFlight       messages of a subscription handed out and not done with, a replica; 0 = any number
  priority          of a pattern; of two that match, the higher one wins, then the longer text`,
		Example: `  throttle-admin set public/default byteRate=1MiB/s burst=100
  throttle-admin set kafka://public/default/orders mode=shadow --for 1h
  throttle-admin set kafka://public/default/orders weight=4 reserved=400 --subscription billing
  throttle-admin set kafka://public/default/orders messageRate=1000 rampFrom=100 rampOver=1m
  throttle-admin set tenant:acme messageRate=5000
  throttle-admin set kafka://public/default/orders messageRate= --dry-run`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("SCOPE or FIELD=VALUE: missing")
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (fields []string, _ cobra.ShellCompDirective) {
			for field := range policy.Fields() {
				if len(args) > 0 {
					fields = append(fields, field+"=")
				}
			}
			return fields, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			p, unset, err := parseFields(args[1:])
			return set(a, cmd, f, args[0], p, unset, err)
		},
	}
	f.Add(cmd)
	return cmd
}

// parseFields parses arguments FIELD=VALUE; it returns the fields of FIELD= in unset.
func parseFields(args []string) (p policy.Policy, unset []string, err error) {
	var errs []error
	known := slices.Collect(policy.Fields())
	seen := make(map[string]bool)
	for _, arg := range args {
		field, text, ok := strings.Cut(arg, "=")
		fault := func(reason string) {
			errs = append(errs, &policy.FieldError{
				Field: fmt.Sprintf("%.50s", field), Value: text, Reason: reason,
			})
		}
		switch {
		case !ok:
			fault("has no value: want FIELD=VALUE, or FIELD= to unset it")
		case !slices.Contains(known, field):
			fault("unknown field: throttle-admin set --help lists all fields")
		case seen[field]:
			fault("is set twice: want each field once")
		case text == "":
			unset = append(unset, field)
		default:
			one, err := policy.ParseField(field, text)
			p = p.Overlay(one)
			errs = append(errs, err)
		}
		seen[field] = true
	}
	quotastate.ToPages(p.ReservedThroughput)
	quotastate.ToPages(p.TotalThroughput)
	return p, unset, errors.Join(errs...)
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
				Note:   func(after []policy.Entry) string { return stillPaused(a, after, scope) },
				Make: func(s configstore.Snapshot) (changes []configstore.Change, err error) {
					for _, e := range s.Entries {
						if e.Scope == scope && e.Policy.IsPaused() {
							changes = append(changes, configstore.Change{
								Key: configstore.KeyOf(e), Policy: e.Policy.Without("paused"),
							})
						}
					}
					return changes, cli.Readable(s, scope)
				},
			})
		},
	}
	cli.AddSubscription(cmd, &subscription)
	f.Add(cmd)
	return cmd
}
