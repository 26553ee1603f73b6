// Package change changes stored policies, or shows what a change would do.
package change

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Plan is a change to be made.
type Plan struct {
	Make     func(configstore.Snapshot) ([]configstore.Change, error)
	Review   string // the command to run if the change is refused as outdated
	Removing bool   // whether policies that a newer version wrote may be removed
	Urgent   bool   // whether the change is made without a record if none can be kept, and at once
	Final    bool   // whether the change is refused, and nobody asked, if others have overtaken it

	// Notes returns warnings about the result; nil or "" means none.
	Notes func(after []policy.Entry) []string
}

// Run applies a plan and prints a Report; with --dry-run it only prints. If others have changed
// policies meanwhile, it shows what they did and asks.
func Run(a *cli.App, cmd *cobra.Command, f Flags, p Plan) error {
	if cmd.Flags().Changed("revision") && f.Revision < 1 {
		return cli.Usage(fmt.Errorf(
			"revision \"%d\": invalid revision: want the one that list, export or diff printed",
			f.Revision))
	}
	var lost error // why an urgent change has no record
	for {
		err := p.run(cmd.Context(), a, f)
		if p.Urgent && !f.By.WithoutHistory && unrecorded(err) {
			lost, f.By.WithoutHistory = err, true
			continue
		}
		if lost != nil && err == nil {
			a.Warn("the history shows this change as one of an unknown author: %v", lost)
		}
		late, ok := errors.AsType[*overtakenError](err)
		switch {
		case !ok:
			return err
		case p.Final, f.DryRun, !a.Interactive():
			return cli.Hint(err, "review the newer policies first: throttle-admin "+p.Review)
		}
		if err := a.Confirm(cmd.Context(), late.question()); err != nil {
			return err
		}
		f.Revision = late.Have
	}
}

// unrecorded reports whether a change may have failed for its record only.
func unrecorded(err error) bool {
	_, ok := errors.AsType[*configstore.HistoryError](err)
	return ok || errors.Is(err, context.DeadlineExceeded)
}

// run applies a plan and prints a Report.
func (p Plan) run(ctx context.Context, a *cli.App, f Flags) error {
	return a.WithStore(ctx, func(ctx context.Context, store configstore.Store) error {
		var before configstore.Snapshot
		var changes []configstore.Change
		prepare := func(s configstore.Snapshot) (_ []configstore.Change, err error) {
			before = s
			if err := checkFirst(ctx, a, s); err != nil {
				return nil, err
			}
			if changes, err = p.Make(s); err != nil {
				return nil, err
			}
			changes = needed(s, changes)
			return changes, p.check(s, changes)
		}
		revision, err := f.apply(ctx, store, p.Urgent, prepare)
		if _, ok := errors.AsType[*configstore.HistoryError](err); ok {
			return cli.Hint(err, "to change it all the same, so that the history shows an unknown author: "+
				"--without-history")
		}
		if tooLarge(err) {
			return cli.Hint(err, "etcd limits a change's size: change fewer policies at a time")
		}
		if err != nil {
			return err
		}
		now := time.Now()
		after := configstore.After(before.Entries, changes, now)
		r := Report{
			DryRun: f.DryRun, Replaces: before.Revision, Revision: revision,
			Changes: Compare(before.Entries, after, now),
		}
		if f.DryRun {
			known := knownTopics(ctx, a, before.Entries, after)
			r.Topics = affected(a.Cluster, known, before.Entries, after)
		}
		if p.Notes != nil {
			for _, note := range p.Notes(after) {
				if note != "" {
					a.Warn("%s", note)
				}
			}
		}
		WarnUndecided(a, configstore.Ties(before.Entries, changes))
		if slices.ContainsFunc(r.Changes, View.ofQuotas) {
			if over := overcommit.Quotas(after, now); over != nil {
				a.Warn("%s", over.Text(now))
			}
		}
		return a.Print(r, r.table)
	})
}

// checkFirst refuses the first change of an empty store while replicas keep or follow other
// policies: this store may have lost its policies, or be the wrong one.
func checkFirst(ctx context.Context, a *cli.App, s configstore.Snapshot) error {
	if s.Plain || s.Marker.Serial > 0 || len(s.Entries) > 0 {
		return nil
	}
	replicas, err := a.Replicas(ctx)
	if err != nil {
		a.Warn("replicas may follow the policies of another store: %v", err)
		return nil
	}
	const check = "check --policies and its prefix. To put a backup in force, restore it, and run: " +
		"throttle-admin adopt. To begin again, "
	if others := cli.Others(replicas, s.Marker.ID); len(others) > 0 {
		return cli.Hint(fmt.Errorf("the policy store is empty, and %s", others[0]),
			check+"set all policies with --permits '', which replicas do not follow yet, and then run: "+
				"throttle-admin adopt --id ID, with the id of these")
	}
	losing := slices.DeleteFunc(replicas, func(r dispatch.Stats) bool { return r.Policies == 0 })
	if held := cli.HeldBy(losing); len(held) > 0 { // they know no id
		return cli.Hint(fmt.Errorf("the policy store is empty, and %s", held[0]),
			check+"set all policies in one change, which these replicas follow at once: "+
				"throttle-admin apply -f FILE --permits ''")
	}
	return nil
}

// WarnUndecided warns about patterns for which it was too complex to decide whether they tie.
func WarnUndecided(a *cli.App, ties []*policy.TieError) {
	for i, tie := range ties {
		switch {
		case i == 3:
			a.Warn("the same holds for %d more pairs of patterns", len(ties)-i)
			return
		case tie.Topic == "":
			a.Warn("%v", tie)
		}
	}
}

// tooLarge reports whether etcd or its client refused a change because of its size.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		err != nil && strings.Contains(err.Error(), "send message larger than max")
}

// needed returns the changes without those that have no effect.
func needed(s configstore.Snapshot, changes []configstore.Change) []configstore.Change {
	stored := make(map[configstore.Key]policy.Entry)
	for _, e := range s.Entries {
		stored[configstore.KeyOf(e)] = e
	}
	return slices.DeleteFunc(changes, func(c configstore.Change) bool {
		e, ok := stored[c.Key]
		if !ok {
			return c.Deletes()
		}
		return e.Err == nil && c.Field == "" &&
			configstore.Same(e, policy.Entry{Settings: c.Settings})
	})
}

// check returns an error if the changes would overwrite what a newer version wrote.
func (p Plan) check(s configstore.Snapshot, changes []configstore.Change) error {
	if p.Removing {
		return nil
	}
	var errs []error
	for _, e := range s.Entries {
		schema, ok := errors.AsType[*policy.SchemaError](e.Err)
		changed := func(c configstore.Change) bool { return c.Key == configstore.KeyOf(e) }
		if ok && schema.Newer() && slices.ContainsFunc(changes, changed) {
			errs = append(errs, e.Err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Hint(err,
			"upgrade throttle-admin, or remove it: throttle-admin remove SCOPE, quota clear ID")
	}
	return nil
}

// An Import is a set of policies that were read from another system.
type Import struct {
	Policies map[policy.Scope]policy.Policy
	Warnings []string // what has no equivalent here
	Review   string   // see Plan
}

// Propose prints the warnings of an import and what it would change; with yes it stores the
// change.
func Propose(a *cli.App, cmd *cobra.Command, f Flags, yes bool, im Import) error {
	for _, line := range im.Warnings {
		a.Warn("%s", line)
	}
	f.DryRun = f.DryRun || !yes
	err := Run(a, cmd, f, Plan{
		Review: im.Review,
		Make: func(s configstore.Snapshot) (changes []configstore.Change, _ error) {
			for _, scope := range slices.SortedFunc(maps.Keys(im.Policies), policy.Scope.Compare) {
				changes = append(changes, s.Set(scope, im.Policies[scope])...)
			}
			return changes, nil
		},
	})
	if err == nil && !yes && a.Output == "table" {
		_, err = fmt.Fprintln(a.Stdout, "to store these changes, add --yes")
	}
	return err
}
