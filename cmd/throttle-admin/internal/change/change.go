// Package change makes changes of policies, or shows what they would do.
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
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Plan says what to change. Removing is set if it may destroy what only a newer version understands.
type Plan struct {
	Review   string // the command that shows what others changed
	Removing bool
	Make     func(configstore.Snapshot) ([]configstore.Change, error)
	Note     func(after []policy.Entry) string // what else there is to say; nil or "" = nothing
}

// A View is what becomes of one field of one scope. Empty values are inherited.
type View struct {
	Scope   string    `json:"scope"`
	Field   string    `json:"field,omitempty"` // empty: of a policy that cannot be read
	Before  string    `json:"before,omitempty"`
	After   string    `json:"after,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // of After, if that is temporary
	Then    string    `json:"then,omitempty"`   // what comes back
	before  string    // for people
	after   string
}

// A Report is what a change did or would do.
type Report struct {
	DryRun   bool        `json:"dryRun,omitempty"`
	Replaces int64       `json:"replaces"`
	Revision int64       `json:"revision"`
	Changes  []View      `json:"changes"`
	Topics   []topicView `json:"topics,omitempty"`
}

// Run makes what p plans, or shows it.
func Run(a *cli.App, cmd *cobra.Command, f Flags, p Plan) error {
	if cmd.Flags().Changed("revision") && f.Revision < 1 {
		return cli.Usage(fmt.Errorf("revision \"%d\": is none: use the one that list, export or diff showed", f.Revision))
	}
	return a.WithStore(cmd.Context(), func(ctx context.Context, store configstore.Store) error {
		var before configstore.Snapshot
		var changes []configstore.Change
		prepare := func(s configstore.Snapshot) (_ []configstore.Change, err error) {
			before = s
			if changes, err = p.Make(s); err != nil {
				return nil, err
			}
			changes = needed(s, changes)
			return changes, p.check(s, changes)
		}
		revision, err := f.apply(ctx, store, prepare)
		if _, late := errors.AsType[*configstore.ConflictError](err); late {
			return cli.Hint(err, "review the newer policies first: throttle-admin "+p.Review)
		}
		if tooLarge(err) {
			return cli.Hint(err, "etcd takes only so much at once: change fewer policies at a time")
		}
		if err != nil {
			return err
		}
		now := time.Now()
		after := Applied(before.Entries, changes, now)
		r := Report{DryRun: f.DryRun, Replaces: before.Revision, Revision: revision, Changes: Compare(before.Entries, after, now)}
		if f.DryRun {
			known := knownTopics(ctx, a, before.Entries, after)
			r.Topics = touched(a.Cluster, known, before.Entries, after)
		}
		if p.Note != nil {
			if note := p.Note(after); note != "" {
				a.Warn("%s", note)
			}
		}
		WarnUndecided(a, configstore.Ties(before.Entries, changes))
		if over := overcommit.Quotas(after, now); over != nil && slices.ContainsFunc(r.Changes, func(c View) bool { return c.Field == "capacity" || strings.HasSuffix(c.Field, "Throughput") }) {
			a.Warn("%s", over.Say(now))
		}
		return a.Print(r, r.table)
	})
}

// WarnUndecided warns of patterns that may tie.
func WarnUndecided(a *cli.App, ties []*policy.TieError) {
	for i, tie := range ties {
		switch {
		case i == 3:
			a.Warn("and so are %d more pairs of patterns", len(ties)-i)
			return
		case tie.Topic == "":
			a.Warn("%v", tie)
		}
	}
}

// tooLarge reports whether etcd, or its client before, refuses a change for its size.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) || err != nil && strings.Contains(err.Error(), "send message larger than max")
}

// apply makes the changes unless it is a dry run, and returns the store's revision.
func (f Flags) apply(ctx context.Context, store configstore.Store, prepare func(configstore.Snapshot) ([]configstore.Change, error)) (int64, error) {
	if !f.DryRun && f.Revision == 0 {
		return configstore.Edit(ctx, store, prepare)
	}
	s, err := store.List(ctx)
	if err != nil {
		return 0, err
	}
	if f.Revision != 0 && s.Applied > f.Revision { // the store would look, but it is not asked if there is nothing to store
		return 0, &configstore.ConflictError{Have: s.Applied, Want: f.Revision}
	}
	changes, err := prepare(s)
	if err != nil {
		return 0, err
	}
	if len(changes) > 0 && !f.DryRun {
		return store.Apply(ctx, changes, f.Revision)
	}
	return s.Revision, configstore.Check(s.Entries, changes)
}

// needed leaves out the changes that change nothing.
func needed(s configstore.Snapshot, changes []configstore.Change) []configstore.Change {
	stored := make(map[configstore.Key]policy.Entry)
	for _, e := range s.Entries {
		stored[configstore.KeyOf(e)] = e
	}
	return slices.DeleteFunc(changes, func(c configstore.Change) bool {
		e, ok := stored[c.Key]
		if !ok {
			return c.Policy.IsZero()
		}
		return e.Err == nil && c.Field == "" && !c.Policy.IsZero() && c.Policy.Equal(e.Policy)
	})
}

// check refuses to write over what a newer version wrote.
func (p Plan) check(s configstore.Snapshot, changes []configstore.Change) error {
	if p.Removing {
		return nil
	}
	var errs []error
	for _, e := range s.Entries {
		_, newer := errors.AsType[*policy.SchemaError](e.Err)
		if newer && slices.ContainsFunc(changes, func(c configstore.Change) bool { return c.Key == configstore.KeyOf(e) }) {
			errs = append(errs, e.Err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Hint(err, "upgrade throttle-admin, or remove the policy: throttle-admin remove SCOPE")
	}
	return nil
}

// Applied returns the entries after the changes.
func Applied(entries []policy.Entry, changes []configstore.Change, now time.Time) []policy.Entry {
	changed := make(map[configstore.Key]bool)
	for _, c := range changes {
		changed[c.Key] = true
	}
	after := slices.DeleteFunc(slices.Clone(entries), func(e policy.Entry) bool { return changed[configstore.KeyOf(e)] })
	for _, c := range changes {
		if !c.Policy.IsZero() {
			after = append(after, c.Entry(now, 0))
		}
	}
	slices.SortFunc(after, policy.Entry.Compare)
	return after
}

// A value is what a scope says of one field.
type value struct {
	permanent, temporary string
	expires              time.Time // of temporary
}

// inForce returns the value that counts.
func (v value) inForce() string {
	if v.temporary != "" {
		return v.temporary
	}
	return v.permanent
}

// describe says the value to people.
func (v value) describe(now time.Time) string {
	named := func(s string) string {
		if s == "" {
			return "inherited"
		}
		return s
	}
	if v.temporary == "" {
		return named(v.permanent)
	}
	return fmt.Sprintf("%s for %s, then %s", v.temporary, output.Left(v.expires, now), named(v.permanent))
}

// valuesOf returns what entries say, by scope and field.
func valuesOf(entries []policy.Entry) map[policy.Scope]map[string]value {
	all := make(map[policy.Scope]map[string]value)
	for _, e := range entries {
		if all[e.Scope] == nil {
			all[e.Scope] = make(map[string]value)
		}
		if e.Err != nil {
			all[e.Scope][""] = value{permanent: "unreadable"}
			continue
		}
		for field := range policy.Fields() {
			if !e.Policy.Has(field) {
				continue
			}
			v := all[e.Scope][field]
			if e.Temporary {
				v.temporary, v.expires = output.Field(e.Policy, field), e.Expires
			} else {
				v.permanent = output.Field(e.Policy, field)
			}
			all[e.Scope][field] = v
		}
	}
	return all
}

// Compare returns what turns one list into the other, field by field.
func Compare(from, to []policy.Entry, now time.Time) []View {
	views := []View{}
	before, after := valuesOf(from), valuesOf(to)
	scopes := maps.Clone(before)
	maps.Copy(scopes, after)
	for _, scope := range slices.SortedFunc(maps.Keys(scopes), policy.Scope.Compare) {
		for _, field := range slices.Insert(slices.Collect(policy.Fields()), 0, "") {
			b, a := before[scope][field], after[scope][field]
			if a == b {
				continue
			}
			v := View{Scope: scope.String(), Field: field, Before: b.inForce(), After: a.inForce(), before: b.describe(now), after: a.describe(now)}
			if a.temporary != "" {
				v.Expires, v.Then = a.expires, a.permanent
			}
			if field == "" {
				v.before, v.after = b.permanent, a.permanent
			}
			views = append(views, v)
		}
	}
	return views
}

func (r Report) table(w *strings.Builder) {
	if len(r.Changes) == 0 {
		fmt.Fprintf(w, "nothing to change at revision %d\n", r.Revision)
		return
	}
	WriteTable(w, r.Changes)
	if !r.DryRun {
		fmt.Fprintf(w, "revision %d replaces %d\n", r.Revision, r.Replaces)
		return
	}
	fmt.Fprintln(w)
	switch {
	case len(r.Topics) == 0 && slices.ContainsFunc(r.Changes, func(c View) bool { return strings.HasSuffix(c.Field, "Throughput") }):
		fmt.Fprintln(w, "a quota touches whoever goes on its id's account: throttle-admin quota status")
	case len(r.Topics) == 0:
		fmt.Fprintln(w, "no known topic is touched")
	default:
		var rows [][]string
		for _, t := range r.Topics {
			rows = append(rows, []string{t.Topic, t.Subscription, t.Field, output.Dash(t.Before), output.Dash(t.After)})
		}
		output.Table(w, []string{"TOPIC", "SUBSCRIPTION", "FIELD", "NOW", "WOULD BE"}, rows)
	}
	fmt.Fprintf(w, "\ndry run: nothing is stored; this would replace revision %d\n", r.Replaces)
}

// WriteTable writes changes for people.
func WriteTable(w *strings.Builder, changes []View) {
	var rows [][]string
	for _, c := range changes {
		rows = append(rows, []string{c.Scope, output.Dash(c.Field), output.Dash(c.before), output.Dash(c.after)})
	}
	output.Table(w, []string{"SCOPE", "FIELD", "BEFORE", "AFTER"}, rows)
}

// Propose shows what an import would change, and what of it cannot be carried over; with yes it stores the change.
func Propose(a *cli.App, cmd *cobra.Command, f Flags, yes bool, review string, policies map[policy.Scope]policy.Policy, said []string) error {
	for _, line := range said {
		a.Warn("%s", line)
	}
	f.DryRun = f.DryRun || !yes
	err := Run(a, cmd, f, Plan{
		Review: review,
		Make: func(s configstore.Snapshot) (changes []configstore.Change, _ error) {
			for _, scope := range slices.SortedFunc(maps.Keys(policies), policy.Scope.Compare) {
				changes = append(changes, s.Set(scope, policies[scope])...)
			}
			return changes, nil
		},
	})
	if err == nil && !yes && a.Output == "table" {
		_, err = fmt.Fprintln(a.Stdout, "to make it so, say it again with --yes")
	}
	return err
}
