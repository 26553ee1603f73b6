// Package quotas holds the commands for throughput quotas, and the ratekeeper.
package quotas

import (
	"errors"
	"fmt"
	"io"
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

// The fields of a quota, by their names in FoundationDB.
const (
	reservedField = "reserved_throughput"
	totalField    = "total_throughput"
)

const throttlingIDs = "tenant:NAME|tag:NAME"

func newQuotaCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "Set and show throughput quotas of tenants and tags",
		Long: `Set and show throughput quotas of tenants and tags, in bytes of cost a second. An
id always gets what it reserves, and never more than its total. The cost of a message is its
bytes, rounded up to pages of 4096, and 4 times that for a write. A subscription is charged to the
tenant group that it was opened with, else to its tag if that has a quota, else to its topic's
tenant. A ratekeeper computes the rates: see throttle-admin ratekeeper.`,
		Example: `  throttle-admin quota set tag:reports total_throughput 1MiB
  throttle-admin quota get tag:reports total_throughput
  throttle-admin quota settings capacity=100MiB zones=a,b
  throttle-admin quota status`,
		RunE: cli.Subcommands,
	}
	cmd.AddCommand(
		newQuotaSetCommand(a), newQuotaGetCommand(a), newQuotaClearCommand(a),
		newQuotaListCommand(a), newQuotaStatusCommand(a), newQuotaSettingsCommand(a),
	)
	return cmd
}

// quotaFields maps the arguments of quota set to fields of a quota.
var quotaFields = map[string]string{reservedField: "reserved", totalField: "total", "mode": "mode"}

// parseQuota parses pairs of arguments FIELD VALUE.
func parseQuota(args []string) (q policy.Quota, err error) {
	if len(args) == 0 || len(args)%2 != 0 {
		return q, fmt.Errorf("FIELD VALUE: one is missing: want %s 409600, %s 40960, or both",
			totalField, reservedField)
	}
	var errs []error
	for i := 0; i < len(args); i += 2 {
		name, text := args[i], args[i+1]
		fault := func(reason string) { errs = append(errs, cli.ArgError(name, text, reason)) }
		field, ok := quotaFields[name]
		if !ok {
			fault("unknown field: want " + reservedField + ", " + totalField + " or mode")
			continue
		}
		one, err := policy.QuotaSection.ParseField(field, text)
		if e, ok := errors.AsType[*policy.FieldError](err); ok {
			fault(e.Reason)
		}
		if policy.Text(q, field) != "" {
			fault("set twice: want each field once")
		}
		q = policy.Overlay(q, one.(policy.Quota))
	}
	quotastate.ToPages(q.Reserved)
	quotastate.ToPages(q.Total)
	if r, t := q.Reserved, q.Total; r != nil && t != nil && *r > *t {
		errs = append(errs, cli.ArgError(reservedField, fmt.Sprint(*r),
			fmt.Sprintf("above %s, %d", totalField, *t)))
	}
	return q, errors.Join(errs...)
}

// negative rewrites the flag parser's error about BYTES of -5, which looks like a flag.
func negative(cmd *cobra.Command, err error) error {
	if e := cli.FlagError(cmd, err); errors.Is(e, err) {
		return err
	}
	_, value, _ := strings.Cut(err.Error(), " in ")
	return fmt.Errorf("BYTES %.200q: negative: want bytes a second, such as 409600 or 1MiB; "+
		"quota clear removes a quota", value)
}

func newQuotaSetCommand(a *cli.App) *cobra.Command {
	var f change.SetFlags
	cmd := &cobra.Command{
		Use:   "set " + throttlingIDs + " FIELD VALUE [FIELD VALUE]...",
		Short: "Set what an id reserves, its total, and its mode",
		Long: "Set what an id reserves (" + reservedField + ") and its total (" + totalField +
			`), in
bytes of cost a second, rounded up to pages of 4096, and its mode: enforce, or shadow, which
computes the rate and limits nothing. A total of 0 pauses the id.

All ids together may not reserve more than the capacity that the cluster declares:
throttle-admin quota settings capacity=BYTES. If they will do so when a temporary capacity or total
expires, this command, quota list and quota status warn.`,
		Example: `  throttle-admin quota set tag:reports total_throughput 409600
  throttle-admin quota set tenant:acme reserved_throughput 1MiB total_throughput 8MiB
  throttle-admin quota set tag:reports total_throughput 0 --for 10m
  throttle-admin quota set tag:reports mode shadow`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 3 {
				return fmt.Errorf("ID FIELD VALUE: missing: want tag:NAME %s 409600", totalField)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, idErr := quotastate.ParseID(args[0])
			q, err := parseQuota(args[1:])
			ttl, ttlErr := f.TTL(cmd)
			if err := errors.Join(idErr, err, ttlErr, checkTemporary(q, ttl)); err != nil {
				return cli.Usage(err)
			}
			changes := func(s configstore.Snapshot) ([]configstore.Change, error) {
				if err := cli.Readable(s, policy.QuotaSection, id); err != nil {
					return nil, err
				}
				if ttl != 0 {
					return s.SetFor(id, q, ttl), nil
				}
				return s.Set(id, q), fits(s, id, q)
			}
			plan := change.Plan{Review: "quota get " + cli.Quote(id), Make: changes}
			return changeQuota(a, cmd, f.Flags, plan, "Successfully updated quota.")
		},
	}
	cmd.Flags().StringVar(&f.For, "for", "",
		"set a temporary total, for a duration such as 2h; then the permanent one applies again")
	f.Flags.Add(cmd)
	cmd.SetFlagErrorFunc(negative)
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
func fits(s configstore.Snapshot, id policy.Scope, q policy.Quota) error {
	stored, _ := s.Find(keyOf(id))
	after := policy.Overlay(stored.(policy.Quota), q)
	r, t := after.Reserved, after.Total
	fault := func(field string, value int64, reason, hint, missing string) error {
		return cli.Hint(cli.ArgError(field, fmt.Sprint(value), reason),
			fmt.Sprintf("%s: throttle-admin quota set %s %s %d %s BYTES", hint, id, field, value,
				missing))
	}
	switch {
	case r == nil || *r == 0 || t != nil && *r <= *t:
		return nil
	case t == nil:
		reason := fmt.Sprintf("needs a permanent %s, and %s has none", totalField, id)
		return fault(reservedField, *r, reason, "set both", totalField)
	case q.Reserved != nil:
		return fault(reservedField, *r, fmt.Sprintf("above %s, %d", totalField, *t),
			"reserve less, or set both", totalField)
	}
	return fault(totalField, *t, fmt.Sprintf("below %s, %d", reservedField, *r),
		"raise it, or set both", reservedField)
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
	return &cobra.Command{
		Use:   "get " + throttlingIDs + " [" + reservedField + "|" + totalField + "]",
		Short: "Show an id's quota, or one field of it",
		Long: "Show an id's quota, or one field of it, in bytes of cost a second. Without a quota, " +
			"print <empty>.",
		Example: `  throttle-admin quota get tag:reports total_throughput
  throttle-admin quota get tenant:acme -o json`,
		Args: func(cmd *cobra.Command, got []string) error {
			if len(got) == 2 {
				return nil
			}
			return cli.Args("ID")(cmd, got)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := quotastate.ParseID(args[0])
			field := ""
			if len(args) > 1 {
				field = args[1]
			}
			if field != "" && field != reservedField && field != totalField {
				err = errors.Join(err, cli.ArgError("field", field,
					"unknown field: want "+reservedField+" or "+totalField))
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
			return a.Print(v, func(w *strings.Builder) {
				switch {
				case v.Total == nil:
					fmt.Fprintln(w, "<empty>")
				case field == reservedField:
					fmt.Fprintln(w, *v.Reserved)
				case field == totalField:
					fmt.Fprintln(w, *v.Total)
				default:
					fmt.Fprintln(w, reservedField, *v.Reserved)
					fmt.Fprintln(w, totalField, *v.Total)
				}
			})
		},
	}
}
