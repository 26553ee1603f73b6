// Package adopt holds the command that declares which policies replicas follow.
package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/printable"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands are the commands of this package.
func Commands(a *cli.App) []*cobra.Command { return []*cobra.Command{newCommand(a)} }

// A state is that of a policy store: before an adoption, or after it.
type state struct {
	ID       string `json:"id"`
	Epoch    int64  `json:"epoch"`    // Unix milliseconds
	Policies int    `json:"policies"` // permanent ones, with quotas and settings
}

// A report is what an adoption has done or, in a dry run, would do.
type report struct {
	state
	DryRun bool  `json:"dryRun,omitempty"`
	Before state `json:"before,omitzero"` // by the marker; its Policies are those of the last change

	// Restart is the id of the replicas that have to be restarted without their cache files; "" =
	// none.
	Restart string `json:"restart,omitempty"`
}

type flags struct {
	adoption           configstore.Adoption
	empty, dryRun, yes bool
}

func newCommand(a *cli.App) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Declare that the policies in the store are the ones to follow",
		Long: `Declare that the policies in the store are the ones to follow.

Replicas keep their last policies when an etcd is empty, is another one, or is older than it
was, since they cannot tell a mistake from intent. Run this command after you have

  - restored the etcd from a backup, or moved the policies to another one
  - deleted all policies by other means than throttle-admin
  - written policies by other means: without a marker, replicas notice no other etcd in its place

A file needs no marker: replicas follow what it holds.

It writes a marker with an id, and the time as its epoch. Replicas take over the policies
if they know that id, or none. The id is that of --id; else the one that the store has; else
that of the replicas that are running, which the permit store of --permits lists; else a new
one. If the store has another id than these replicas, choose one with --id. The epoch is
later than those that the store and these replicas have; replicas that are not listed name
theirs in their errors if it was written by a clock that was ahead.

It shows what it will do and asks, unless --yes is given. Without a terminal, --yes is required.`,
		Example: `  throttle-admin adopt --dry-run
  throttle-admin adopt
  throttle-admin adopt --yes --id ORVT3AAPLTMXSVCF4VVFFFMNLA`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), a, f) },
	}
	cmd.Flags().StringVar(&f.adoption.ID, "id", "", "the id that replicas know; their errors name it")
	cmd.Flags().Int64Var(&f.adoption.After, "after", 0,
		"an epoch that replicas know; their errors name it. The new one is later")
	cmd.Flags().BoolVar(&f.empty, "empty", false, "adopt a store without policies")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show the result without storing it")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	return cmd
}

// run adopts the store, after it has asked. It asks between two visits to the store, since an
// answer may take longer than a visit may.
func run(ctx context.Context, a *cli.App, f flags) error {
	if !f.yes && !f.dryRun && !a.Interactive() {
		return cli.Hint(cli.Usage(errors.New("adopt decides which policies all replicas follow, and nobody can be asked")),
			"see what it would do with --dry-run, and confirm it with --yes")
	}
	var p plan
	err := a.WithStore(ctx, func(ctx context.Context, store configstore.Store) (err error) {
		p, err = makePlan(ctx, a, f, store)
		return err
	})
	if err != nil {
		return err
	}
	if f.dryRun {
		return a.Print(p.report, p.table)
	}
	if !f.yes {
		var text strings.Builder
		p.planned().table(&text)
		if err := a.Confirm(ctx, printable.Text(text.String())+"Adopt?"); err != nil {
			return err
		}
	}
	err = a.WithStore(ctx, func(ctx context.Context, store configstore.Store) error {
		return p.carryOut(ctx, store)
	})
	if err != nil {
		return err
	}
	return a.Print(p.report, p.table)
}

// A plan is an adoption that is about to be made.
type plan struct {
	adoption configstore.Adoption
	before   configstore.Snapshot
	report
}

// makePlan returns what the flags ask for.
func makePlan(ctx context.Context, a *cli.App, f flags, store configstore.Store) (plan, error) {
	before, err := store.List(ctx)
	switch {
	case err != nil:
		return plan{}, err
	case before.Plain:
		return plan{}, cli.Hint(errors.New("replicas follow what a file holds without an adoption"),
			"to replace the policies of an etcd by it: throttle-admin apply -f FILE --policies etcd://...")
	}
	was := before.Marker
	adoption, err := complete(ctx, a, f.adoption, was.ID)
	if err != nil {
		return plan{}, err
	}
	m, err := was.Adopted(adoption, before.Entries, time.Now())
	if err != nil {
		return plan{}, err
	}
	if m.Count == 0 && !f.empty && (adoption.ID != "" || was.Count > 0) {
		return plan{}, cli.Hint(
			errors.New("the policy store is empty: its replicas would lose all limits"),
			"restore the policies, or confirm with --empty")
	}
	adoption.ID = m.ID // a new id is the one that was shown
	p := plan{adoption: adoption, before: before}
	p.report = report{
		state: state{m.ID, m.Epoch, m.Count}, DryRun: f.dryRun, Before: state{was.ID, was.Epoch, was.Count},
	}
	if was.ID != m.ID {
		p.Restart = was.ID
	}
	return p, nil
}

// carryOut makes the adoption, unless the store has changed since the plan was made.
func (p *plan) carryOut(ctx context.Context, store configstore.Store) error {
	now, err := store.List(ctx)
	switch {
	case err != nil:
		return err
	case now.Marker != p.before.Marker, !samePermanent(now.Entries, p.before.Entries):
		return cli.Hint(errors.New("the policy store has changed meanwhile, and was not adopted"),
			"look at what it holds (throttle-admin list), and try again")
	}
	m, err := store.Adopt(ctx, p.adoption)
	if err == nil {
		p.state = state{m.ID, m.Epoch, m.Count}
	}
	return err
}

// samePermanent reports whether two lists have the same permanent entries, written at the same
// revisions.
func samePermanent(a, b []policy.Entry) bool {
	permanent := func(entries []policy.Entry) []policy.Entry {
		return slices.DeleteFunc(slices.Clone(entries), func(e policy.Entry) bool { return e.Temporary })
	}
	return slices.EqualFunc(permanent(a), permanent(b), func(a, b policy.Entry) bool {
		return configstore.KeyOf(a) == configstore.KeyOf(b) && a.Revision == b.Revision
	})
}

// planned is the report as a dry run has it.
func (r report) planned() report {
	r.DryRun = true
	return r
}

// complete returns the adoption with an id, unless no replica and no store has one, and with the
// latest epoch that running replicas have followed under it. These do not decide between their id
// and another one that the store has: anyone who may allocate permits can publish a status record.
func complete(
	ctx context.Context, a *cli.App, adoption configstore.Adoption, ofStore string,
) (configstore.Adoption, error) {
	replicas, err := a.Replicas(ctx)
	switch {
	case err != nil && adoption.ID == "":
		return adoption, err
	case err != nil:
		a.Warn("the epochs that replicas know are not considered: %v", err)
	}
	known, ahead := cli.KnownIDs(replicas)
	if len(ahead) > 0 {
		a.Warn("epochs over a day ahead of this machine's clock, stated by %s, are ignored: %s",
			cli.Count(len(ahead), "replica"), cli.Names(ahead))
	}
	ids := map[string]bool{}
	var names []string
	for _, k := range known {
		ids[k.ID] = true
		names = append(names, fmt.Sprintf("%s (%s)", printable.Line(k.ID), cli.Count(len(k.Replicas), "replica")))
	}
	if adoption.ID == "" && ofStore != "" {
		ids[ofStore] = true
		names = append(names, printable.Line(ofStore)+" (the policy store)")
	}
	if adoption.ID == "" && len(ids) > 1 {
		return adoption, cli.Hint(
			fmt.Errorf("running replicas and the policy store have several ids: %s", strings.Join(names, ", ")),
			"choose the one whose replicas are to follow these policies: throttle-admin adopt --id ID. "+
				"Replicas that know another one must be restarted without their cache files")
	}
	for id := range ids {
		adoption.ID = cmp.Or(adoption.ID, id)
	}
	for _, k := range known {
		if k.ID == adoption.ID {
			adoption.After = max(adoption.After, k.Epoch)
		}
	}
	return adoption, nil
}

func (r report) table(w *strings.Builder) {
	verb := "adopted"
	if r.DryRun {
		verb = "would adopt"
	}
	fmt.Fprintf(w, "%s %s\n", verb, cli.Count(r.Policies, "policy"))
	output.Table(w, []string{"", "BEFORE", "AFTER"}, [][]string{
		{"id", output.Dash(r.Before.ID), r.ID},
		{"epoch", r.Before.when(), r.when()},
		{"policies", r.Before.count(), r.count()},
	})
	if r.Restart != "" {
		fmt.Fprintf(w, "The store had the id %s. Replicas that know that one must be restarted "+
			"without their cache files.\n", printable.Line(r.Restart))
	}
}

// count is the number of policies for people.
func (s state) count() string {
	if s.ID == "" {
		return "-"
	}
	return fmt.Sprint(s.Policies)
}

// when is the epoch for people.
func (s state) when() string {
	if s.Epoch == 0 {
		return "-"
	}
	return fmt.Sprintf("%d (%s)", s.Epoch, time.UnixMilli(s.Epoch).UTC().Format(time.RFC3339))
}
