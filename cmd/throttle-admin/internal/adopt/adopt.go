// Package adopt holds the command that declares which policies replicas follow.
package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/printable"
)

// Commands are the commands of this package.
func Commands(a *cli.App) []*cobra.Command { return []*cobra.Command{newCommand(a)} }

type report struct {
	ID       string `json:"id"`
	Epoch    int64  `json:"epoch"`
	Policies int    `json:"policies"` // permanent ones, with quotas and settings
	DryRun   bool   `json:"dryRun,omitempty"`
	Replaces string `json:"replaces,omitempty"` // the id that the store had, if it had another
}

func newCommand(a *cli.App) *cobra.Command {
	var adoption configstore.Adoption
	var empty, dryRun bool
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
theirs in their errors if it was written by a clock that was ahead.`,
		Example: `  throttle-admin adopt --dry-run
  throttle-admin adopt
  throttle-admin adopt --id ORVT3AAPLTMXSVCF4VVFFFMNLA`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.WithStore(cmd.Context(),
				func(ctx context.Context, store configstore.Store) error {
					before, err := store.List(ctx)
					switch {
					case err != nil:
						return err
					case before.Plain:
						return cli.Hint(errors.New("replicas follow what a file holds without an adoption"),
							"to replace the policies of an etcd by it: throttle-admin apply -f FILE --policies etcd://...")
					}
					adoption, err := complete(ctx, a, adoption, before.Marker.ID)
					if err != nil {
						return err
					}
					m, err := before.Marker.Adopted(adoption, before.Entries, time.Now())
					if err != nil {
						return err
					}
					if m.Count == 0 && !empty && (adoption.ID != "" || before.Marker.Count > 0) {
						return cli.Hint(
							errors.New("the policy store is empty: its replicas would lose all limits"),
							"restore the policies, or confirm with --empty")
					}
					if !dryRun {
						if m, err = store.Adopt(ctx, adoption); err != nil {
							return err
						}
					}
					r := report{ID: m.ID, Epoch: m.Epoch, Policies: m.Count, DryRun: dryRun}
					if before.Marker.ID != m.ID {
						r.Replaces = before.Marker.ID
					}
					return a.Print(r, r.table)
				})
		},
	}
	cmd.Flags().StringVar(&adoption.ID, "id", "", "the id that replicas know; their errors name it")
	cmd.Flags().Int64Var(&adoption.After, "after", 0,
		"an epoch that replicas know; their errors name it. The new one is later")
	cmd.Flags().BoolVar(&empty, "empty", false, "adopt a store without policies")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the result without storing it")
	return cmd
}

// complete returns the adoption with an id, unless no replica and no store has one, and with the
// latest epoch that running replicas have followed under it. These do not decide between their id
// and another one that the store has: anyone who may allocate permits can publish a status record.
func complete(
	ctx context.Context, a *cli.App, adoption configstore.Adoption, ofStore string,
) (configstore.Adoption, error) {
	known, err := a.KnownIDs(ctx)
	switch {
	case err != nil && adoption.ID == "":
		return adoption, err
	case err != nil:
		a.Warn("the epochs that replicas know are not considered: %v", err)
	}
	ids := map[string]bool{}
	var names []string
	for _, k := range known {
		ids[k.ID] = true
		names = append(names, fmt.Sprintf("%s (%d replicas)", printable.Line(k.ID), k.Replicas))
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
	noun := "policies"
	if r.Policies == 1 {
		noun = "policy"
	}
	fmt.Fprintf(w, "%s %d %s\n  id     %s\n  epoch  %d (%s)\n", verb, r.Policies, noun, printable.Line(r.ID), r.Epoch,
		time.UnixMilli(r.Epoch).UTC().Format(time.RFC3339))
	if r.Replaces != "" {
		fmt.Fprintf(w, "The store had the id %s. Replicas that know that one must be restarted "+
			"without their cache files.\n", printable.Line(r.Replaces))
	}
}
