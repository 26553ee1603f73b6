package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// changeFlags are those of every command that changes policies.
type changeFlags struct {
	dryRun   bool
	revision int64
}

func (f *changeFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show the change and the known topics it touches, and store nothing")
	cmd.Flags().Int64Var(&f.revision, "revision", 0, "refuse (exit status 3) if anything was changed after this revision")
}

// A plan says what to change. Removing is set if it may destroy what only a newer version understands.
type plan struct {
	review   string // the command that shows what others changed
	removing bool
	make     func(configstore.Snapshot) ([]configstore.Change, error)
	note     func(after []policy.Entry) string // what else there is to say; nil or "" = nothing
}

// A changeView is what becomes of one field of one scope. Empty values are inherited.
type changeView struct {
	Scope   string    `json:"scope"`
	Field   string    `json:"field,omitempty"` // empty: of a policy that cannot be read
	Before  string    `json:"before,omitempty"`
	After   string    `json:"after,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // of After, if that is temporary
	Then    string    `json:"then,omitempty"`   // what comes back
	before  string    // for people
	after   string
}

type changeReport struct {
	DryRun   bool         `json:"dryRun,omitempty"`
	Replaces int64        `json:"replaces"`
	Revision int64        `json:"revision"`
	Changes  []changeView `json:"changes"`
	Topics   []topicView  `json:"topics,omitempty"`
}

// change makes what p plans, or shows it.
func (a *app) change(cmd *cobra.Command, f changeFlags, p plan) error {
	if cmd.Flags().Changed("revision") && f.revision < 1 {
		return misuse(fmt.Errorf("revision \"%d\": is none: use the one that list, export or diff showed", f.revision))
	}
	return a.withStore(cmd.Context(), func(ctx context.Context, store configstore.Store) error {
		var before configstore.Snapshot
		var changes []configstore.Change
		prepare := func(s configstore.Snapshot) (_ []configstore.Change, err error) {
			before = s
			if changes, err = p.make(s); err != nil {
				return nil, err
			}
			changes = needed(s, changes)
			return changes, p.check(s, changes)
		}
		revision, err := f.apply(ctx, store, prepare)
		if _, late := errors.AsType[*configstore.ConflictError](err); late {
			return &hintError{err, "review the newer policies first: throttle-admin " + p.review}
		}
		if tooLarge(err) {
			return &hintError{err, "etcd takes only so much at once: change fewer policies at a time"}
		}
		if err != nil {
			return err
		}
		now := time.Now()
		after := applied(before.Entries, changes, now)
		r := changeReport{DryRun: f.dryRun, Replaces: before.Revision, Revision: revision, Changes: compare(before.Entries, after, now)}
		if f.dryRun {
			known := a.knownTopics(ctx, before.Entries, after)
			r.Topics = touched(a.cluster, known, before.Entries, after)
		}
		if p.note != nil {
			if note := p.note(after); note != "" {
				a.warn("%s", note)
			}
		}
		a.warnUndecided(configstore.Ties(before.Entries, changes))
		if over := overCommitted(after, now); over != nil && slices.ContainsFunc(r.Changes, func(c changeView) bool { return c.Field == "capacity" || strings.HasSuffix(c.Field, "Throughput") }) {
			a.warn("%s", over.say(now))
		}
		return a.print(r, r.table)
	})
}

// warnUndecided warns of patterns that may tie.
func (a *app) warnUndecided(ties []*policy.TieError) {
	for i, tie := range ties {
		switch {
		case i == 3:
			a.warn("and so are %d more pairs of patterns", len(ties)-i)
			return
		case tie.Topic == "":
			a.warn("%v", tie)
		}
	}
}

// tooLarge reports whether etcd, or its client before, refuses a change for its size.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) || err != nil && strings.Contains(err.Error(), "send message larger than max")
}

// apply makes the changes unless it is a dry run, and returns the store's revision.
func (f changeFlags) apply(ctx context.Context, store configstore.Store, prepare func(configstore.Snapshot) ([]configstore.Change, error)) (int64, error) {
	if !f.dryRun && f.revision == 0 {
		return configstore.Edit(ctx, store, prepare)
	}
	s, err := store.List(ctx)
	if err != nil {
		return 0, err
	}
	if f.revision != 0 && s.Applied > f.revision { // the store would look, but it is not asked if there is nothing to store
		return 0, &configstore.ConflictError{Have: s.Applied, Want: f.revision}
	}
	changes, err := prepare(s)
	if err != nil {
		return 0, err
	}
	if len(changes) > 0 && !f.dryRun {
		return store.Apply(ctx, changes, f.revision)
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
func (p plan) check(s configstore.Snapshot, changes []configstore.Change) error {
	if p.removing {
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
		return &hintError{err, "upgrade throttle-admin, or remove the policy: throttle-admin remove SCOPE"}
	}
	return nil
}

// applied returns the entries after the changes.
func applied(entries []policy.Entry, changes []configstore.Change, now time.Time) []policy.Entry {
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
	return fmt.Sprintf("%s for %s, then %s", v.temporary, left(v.expires, now), named(v.permanent))
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
				v.temporary, v.expires = fieldText(e.Policy, field), e.Expires
			} else {
				v.permanent = fieldText(e.Policy, field)
			}
			all[e.Scope][field] = v
		}
	}
	return all
}

// compare returns what turns one list into the other, field by field.
func compare(from, to []policy.Entry, now time.Time) []changeView {
	views := []changeView{}
	before, after := valuesOf(from), valuesOf(to)
	scopes := maps.Clone(before)
	maps.Copy(scopes, after)
	for _, scope := range slices.SortedFunc(maps.Keys(scopes), policy.Scope.Compare) {
		for _, field := range slices.Insert(slices.Collect(policy.Fields()), 0, "") {
			b, a := before[scope][field], after[scope][field]
			if a == b {
				continue
			}
			v := changeView{Scope: scope.String(), Field: field, Before: b.inForce(), After: a.inForce(), before: b.describe(now), after: a.describe(now)}
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

func (r changeReport) table(w *strings.Builder) {
	if len(r.Changes) == 0 {
		fmt.Fprintf(w, "nothing to change at revision %d\n", r.Revision)
		return
	}
	writeChanges(w, r.Changes)
	if !r.DryRun {
		fmt.Fprintf(w, "revision %d replaces %d\n", r.Revision, r.Replaces)
		return
	}
	fmt.Fprintln(w)
	switch {
	case len(r.Topics) == 0 && slices.ContainsFunc(r.Changes, func(c changeView) bool { return strings.HasSuffix(c.Field, "Throughput") }):
		fmt.Fprintln(w, "a quota touches whoever goes on its id's account: throttle-admin quota status")
	case len(r.Topics) == 0:
		fmt.Fprintln(w, "no known topic is touched")
	default:
		var rows [][]string
		for _, t := range r.Topics {
			rows = append(rows, []string{t.Topic, t.Subscription, t.Field, dash(t.Before), dash(t.After)})
		}
		writeTable(w, []string{"TOPIC", "SUBSCRIPTION", "FIELD", "NOW", "WOULD BE"}, rows)
	}
	fmt.Fprintf(w, "\ndry run: nothing is stored; this would replace revision %d\n", r.Replaces)
}

func writeChanges(w *strings.Builder, changes []changeView) {
	var rows [][]string
	for _, c := range changes {
		rows = append(rows, []string{c.Scope, dash(c.Field), dash(c.before), dash(c.after)})
	}
	writeTable(w, []string{"SCOPE", "FIELD", "BEFORE", "AFTER"}, rows)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// A reader is a subscription of a topic, or with an empty name the topic itself.
type reader struct {
	topic policy.Topic
	name  string
}

// knownTopics returns those that entries name and those that replicas read.
func (a *app) knownTopics(ctx context.Context, lists ...[]policy.Entry) map[reader]bool {
	known := make(map[reader]bool)
	for _, entries := range lists {
		for _, e := range entries {
			if e.Scope.Kind == policy.TopicKind || e.Scope.Kind == policy.SubscriptionKind {
				known[reader{e.Scope.Topic, ""}] = true
				known[reader{e.Scope.Topic, e.Scope.Subscription}] = true
			}
		}
	}
	permits, err := a.openPermits()
	if err == nil && permits != nil {
		defer func() { _ = permits.Close() }() // nothing was written
		var replicas []dispatch.Stats
		replicas, err = published(ctx, permits, a.cluster)
		for _, r := range replicas {
			for _, s := range r.Subscriptions {
				if t, e := policy.ParseTopic(s.Topic); e == nil {
					known[reader{t, ""}] = true
					known[reader{t, s.Subscription}] = true
				}
			}
		}
	}
	if err != nil {
		a.warn("topics that only replicas know are missing: %v", err)
	}
	return known
}

// published returns the status records of a cluster's replicas, sorted by name.
func published(ctx context.Context, permits dispatch.PermitStore, cluster string) ([]dispatch.Stats, error) {
	texts, err := permits.Published(ctx, cluster)
	var all []dispatch.Stats
	for _, text := range texts {
		var s dispatch.Stats
		if e := json.Unmarshal(text, &s); e != nil {
			err = errors.Join(err, fmt.Errorf("a replica's status record: %w", e))
			continue
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b dispatch.Stats) int {
		if a.Replica < b.Replica {
			return -1
		}
		return 1
	})
	return all, err
}

// A topicView is what a change would do to one field of a known topic or subscription.
type topicView struct {
	Topic        string `json:"topic"`
	Subscription string `json:"subscription,omitempty"`
	Field        string `json:"field"`
	Before       string `json:"before,omitempty"`
	After        string `json:"after,omitempty"`
}

// touched returns what becomes of the known topics and, where that differs, of their subscriptions.
func touched(cluster string, known map[reader]bool, from, to []policy.Entry) []topicView {
	before, _ := policy.NewSet(from) // what is wrong with it was there before, or was refused
	after, _ := policy.NewSet(to)
	var views []topicView
	readers := slices.SortedFunc(maps.Keys(known), func(a, b reader) int {
		return policy.SubscriptionScope(a.topic, a.name).Compare(policy.SubscriptionScope(b.topic, b.name))
	})
	for _, r := range readers {
		b, a := before.Resolve(cluster, r.topic, r.name), after.Resolve(cluster, r.topic, r.name)
		for field := range policy.Fields() {
			topicFrom, topicTo := fieldText(b.Topic, field), fieldText(a.Topic, field)
			from, to := topicFrom, topicTo
			if r.name != "" {
				from, to = fieldText(b.Subscription, field), fieldText(a.Subscription, field)
				if from == topicFrom && to == topicTo {
					continue // said of the topic
				}
			}
			if from != to {
				views = append(views, topicView{r.topic.String(), r.name, field, from, to})
			}
		}
	}
	return views
}

// propose shows what an import would change, and what of it cannot be carried over; with yes it stores the change.
func (a *app) propose(cmd *cobra.Command, f changeFlags, yes bool, review string, policies map[policy.Scope]policy.Policy, said []string) error {
	for _, line := range said {
		a.warn("%s", line)
	}
	f.dryRun = f.dryRun || !yes
	err := a.change(cmd, f, plan{
		review: review,
		make: func(s configstore.Snapshot) (changes []configstore.Change, _ error) {
			for _, scope := range slices.SortedFunc(maps.Keys(policies), policy.Scope.Compare) {
				changes = append(changes, s.Set(scope, policies[scope])...)
			}
			return changes, nil
		},
	})
	if err == nil && !yes && a.output == "table" {
		_, err = fmt.Fprintln(a.stdout, "to make it so, say it again with --yes")
	}
	return err
}
