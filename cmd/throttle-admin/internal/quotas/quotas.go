// Package quotas holds the commands for throughput quotas, and the ratekeeper.
package quotas

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newQuotaCommand(a), newRatekeeperCommand(a)}
}

const throttlingIDs = "tenant:NAME|tag:NAME"

var settings = change.SettingsCommand{
	Section: policy.QuotaSettingsSection,
	Parent:  "quota",
	Of:      "quotas, which the ratekeeper applies",
	Example: `  throttle-admin quota settings
  throttle-admin quota settings capacity=100MiB zones=a,b ignoreZones=0
  throttle-admin quota settings capacity=50MiB --for 2h
  throttle-admin quota settings mode= --dry-run`,
	InForce: func(s *policy.Set) policy.Settings { return s.QuotaSettings() },
}

func newQuotaCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "Set and show throughput quotas of tenants and tags",
		Long: `Set and show throughput quotas of tenants and tags, in bytes of cost a second. An
id always gets what it reserves, and never more than its total. The cost of a message is its
bytes, rounded up to pages of 4096, and 4 times that for a write. A subscription is charged to the
tenant group that it was opened with, else to its tag if that has a quota, else to its topic's
tenant. A ratekeeper computes the rates: see throttle-admin ratekeeper.`,
		Example: `  throttle-admin quota set tag:reports total=1MiB
  throttle-admin quota get tag:reports total
  throttle-admin quota settings capacity=100MiB zones=a,b
  throttle-admin quota status`,
		RunE: cli.Subcommands,
	}
	cmd.AddCommand(
		newQuotaSetCommand(a), newQuotaGetCommand(a), newQuotaClearCommand(a), newQuotaResetCommand(a),
		newQuotaListCommand(a), newQuotaStatusCommand(a), settings.New(a),
	)
	return cmd
}

// parseQuota parses arguments FIELD=VALUE; it returns the fields of FIELD= in unset.
func parseQuota(args []string) (q policy.Quota, unset []string, err error) {
	set, unset, err := change.ParseFields(policy.QuotaSection, args)
	q = set.(policy.Quota)
	quotastate.ToPages(q.Reserved)
	quotastate.ToPages(q.Total)
	if r, t := q.Reserved, q.Total; r != nil && t != nil && *r > *t {
		err = errors.Join(err, cli.ArgError("reserved", fmt.Sprint(*r),
			fmt.Sprintf("above total, %d", *t)))
	}
	return q, unset, err
}

func newQuotaSetCommand(a *cli.App) *cobra.Command {
	var f change.SetFlags
	const section = policy.QuotaSection
	cmd := &cobra.Command{
		Use:   "set " + throttlingIDs + " FIELD=VALUE...",
		Short: "Set fields of an id's quota",
		Long: `Set fields of an id's quota; the others keep their values. FIELD= unsets a field.
Throughputs are bytes of cost a second, rounded up to pages of 4096.

All ids together may not reserve more than the capacity that the cluster declares:
throttle-admin quota settings capacity=BYTES. If they will do so when a temporary capacity or total
expires, this command, quota list and quota status warn.

` + change.FieldHelp(section),
		Example: `  throttle-admin quota set tag:reports total=409600
  throttle-admin quota set tenant:acme reserved=1MiB total=8MiB
  throttle-admin quota set tag:reports total=0 --for 10m
  throttle-admin quota set tag:reports mode=shadow`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("ID or FIELD=VALUE: missing: want tag:NAME total=409600")
			}
			return nil
		},
		ValidArgsFunction: change.CompleteFields(section, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, idErr := quotastate.ParseID(args[0])
			q, unset, err := parseQuota(args[1:])
			ttl, ttlErr := f.TTL(cmd, unset...)
			if err := errors.Join(idErr, err, ttlErr, checkTemporary(q, ttl)); err != nil {
				return cli.Usage(err)
			}
			changes := func(s configstore.Snapshot) ([]configstore.Change, error) {
				if err := cli.Readable(s, section, id); err != nil {
					return nil, err
				}
				if ttl != 0 {
					return s.SetFor(id, q, ttl), nil
				}
				return s.SetAndUnset(id, q, unset...), fits(s, id, q, unset)
			}
			plan := change.Plan{Review: "quota get " + cli.Quote(id), Make: changes}
			return changeQuota(a, cmd, f.Flags, plan, "Successfully updated quota.")
		},
	}
	cmd.Flags().StringVar(&f.For, "for", "",
		"set a temporary total or mode, for a duration such as 2h; then the permanent one "+
			"applies again")
	f.Flags.Add(cmd)
	return cmd
}

// checkTemporary returns an error if a quota with a ttl reserves throughput: a reservation must fit
// its total at any time, and temporary fields expire one by one.
func checkTemporary(q policy.Quota, ttl time.Duration) error {
	if r := q.Reserved; ttl != 0 && r != nil && *r > 0 {
		return cli.ArgError("for", policy.Duration(ttl).String(),
			"not allowed for a reservation: want a total alone, or no --for")
	}
	return nil
}

// fits returns an error if a part of a quota does not fit the other part, which is stored.
func fits(s configstore.Snapshot, id policy.Scope, q policy.Quota, unset []string) error {
	stored, _ := s.Find(keyOf(id))
	after := policy.Without(policy.Overlay(stored.(policy.Quota), q), unset...)
	r, t := after.Reserved, after.Total
	fault := func(field, value, reason, hint, fields string) error {
		return cli.Hint(cli.ArgError(field, value, reason),
			fmt.Sprintf("%s: throttle-admin quota set %s %s", hint, cli.Quote(id), fields))
	}
	switch {
	case r == nil || *r == 0 || t != nil && *r <= *t:
		return nil
	case t == nil && slices.Contains(unset, "total"):
		return fault("total", "", fmt.Sprintf("cannot be unset: reserved is %d", *r),
			"unset both", "reserved= total=")
	case t == nil:
		return fault("reserved", fmt.Sprint(*r),
			fmt.Sprintf("needs a permanent total, and %s has none", id),
			"set both", fmt.Sprintf("reserved=%d total=BYTES", *r))
	case q.Reserved != nil:
		return fault("reserved", fmt.Sprint(*r), fmt.Sprintf("above total, %d", *t),
			"reserve less, or set both", fmt.Sprintf("reserved=%d total=BYTES", *r))
	}
	return fault("total", fmt.Sprint(*t), fmt.Sprintf("below reserved, %d", *r),
		"raise it, or set both", fmt.Sprintf("reserved=BYTES total=%d", *t))
}

// keyOf returns the key of an id's permanent quota.
func keyOf(id policy.Scope) configstore.Key {
	return configstore.Key{Section: policy.QuotaSection, Scope: id}
}

func newQuotaClearCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	cmd := &cobra.Command{
		Use:     "clear " + throttlingIDs,
		Short:   "Remove an id's quota",
		Long:    "Remove an id's quota, with its temporary values. A tenant's policy stays.",
		Example: `  throttle-admin quota clear tag:reports`,
		Args:    cli.Args("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := quotastate.ParseID(args[0])
			if err != nil {
				return cli.Usage(err)
			}
			changes := func(s configstore.Snapshot) ([]configstore.Change, error) {
				return s.Remove(policy.QuotaSection, id), nil
			}
			plan := change.Plan{Review: "quota get " + cli.Quote(id), Make: changes, Removing: true}
			return changeQuota(a, cmd, f, plan, "Successfully cleared quota.")
		},
	}
	f.Add(cmd)
	return cmd
}

func newQuotaResetCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	cmd := &cobra.Command{
		Use:   "reset " + throttlingIDs + " [FIELD...]",
		Short: "End temporary values of an id's quota at once",
		Long: `End the temporary values of an id's quota, which were set with --for, at once: of some
fields, or of all. The values that they replaced apply again.`,
		Example: `  throttle-admin quota reset tag:reports`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := quotastate.ParseID(args[0])
			if err != nil {
				return cli.Usage(err)
			}
			changes := func(s configstore.Snapshot) ([]configstore.Change, error) {
				return change.Reset(s, policy.QuotaSection, id, args[1:]...)
			}
			plan := change.Plan{Review: "quota get " + cli.Quote(id), Make: changes}
			return changeQuota(a, cmd, f, plan, "Successfully reset quota.")
		},
	}
	f.Add(cmd)
	return cmd
}

// changeQuota changes a quota. In place of the table of changes it prints done, the text that
// FoundationDB's command prints.
func changeQuota(
	a *cli.App, cmd *cobra.Command, f change.Flags, plan change.Plan, done string,
) error {
	if a.Output != "table" || f.DryRun {
		return change.Run(a, cmd, f, plan)
	}
	quiet := *a
	quiet.Stdout = io.Discard
	if err := change.Run(&quiet, cmd, f, plan); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.Stdout, done)
	return err
}

func newQuotaGetCommand(a *cli.App) *cobra.Command {
	var fields []string
	for _, f := range policy.QuotaSection.Fields() {
		fields = append(fields, f.Name)
	}
	return &cobra.Command{
		Use:   "get " + throttlingIDs + " [" + strings.Join(fields, "|") + "]",
		Short: "Show an id's quota, or one field of it",
		Long: `Show an id's quota, or one field of it, in bytes of cost a second; <empty> without
one. The mode is that of quota settings if the quota sets none.`,
		Example: `  throttle-admin quota get tag:reports total
  throttle-admin quota get tenant:acme -o json`,
		Args: func(cmd *cobra.Command, got []string) error {
			if len(got) == 2 {
				return nil
			}
			return cli.Args("ID")(cmd, got)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := quotastate.ParseID(args[0])
			shown := args[1:]
			if len(shown) > 0 && !slices.Contains(fields, shown[0]) {
				err = errors.Join(err, cli.ArgError("field", shown[0],
					"unknown field: want one of "+strings.Join(fields, ", ")))
			}
			if err != nil {
				return cli.Usage(err)
			}
			s, err := a.Policies(cmd.Context())
			if err != nil {
				return err
			}
			set, _ := policy.NewSet(s.Entries) // usable without its invalid entries
			if err := cli.Readable(s, policy.QuotaSection, id); err != nil {
				return err
			}
			v := quotastate.View{ID: id.String()}
			if q, ok := set.Quota(id); ok {
				v = quotastate.ViewOf(id, q, s)
			}
			return a.Print(v, func(w *strings.Builder) { writeQuota(w, v, shown) })
		},
	}
}

// writeQuota writes the value of one field or, without one, a line for each field.
func writeQuota(w *strings.Builder, v quotastate.View, fields []string) {
	if v.Total == nil {
		fmt.Fprintln(w, "<empty>")
		return
	}
	inForce := policy.Quota{Reserved: v.Reserved, Total: v.Total, Mode: v.Mode}
	if len(fields) == 1 {
		fmt.Fprintln(w, policy.Text(inForce, fields[0]))
		return
	}
	for _, f := range policy.Fields(inForce) {
		fmt.Fprintln(w, f, policy.Text(inForce, f))
	}
}
