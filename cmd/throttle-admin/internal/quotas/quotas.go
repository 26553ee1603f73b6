// Package quotas holds the commands for throughput quotas, and the ratekeeper.
package quotas

import (
	"errors"
	"fmt"
	"io"
	"strings"

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
  throttle-admin quota status`,
		RunE: cli.Subcommands,
	}
	cmd.AddCommand(
		newQuotaSetCommand(a), newQuotaGetCommand(a), newQuotaClearCommand(a),
		newQuotaListCommand(a), newQuotaStatusCommand(a),
	)
	return cmd
}

// throughput parses bytes a second, rounded up to whole pages.
func throughput(field, text string) (*int64, error) {
	n, err := policy.ParseThroughput(text)
	if fault, ok := errors.AsType[*policy.FieldError](err); ok {
		return nil, &policy.FieldError{Field: field, Value: text, Reason: fault.Reason}
	}
	quotastate.ToPages(&n)
	return &n, nil
}

// parseQuota parses pairs of arguments FIELD BYTES.
func parseQuota(args []string) (p policy.Policy, err error) {
	if len(args) == 0 || len(args)%2 != 0 {
		return p, fmt.Errorf("FIELD BYTES: one is missing: want %s 409600, %s 40960, or both",
			totalField, reservedField)
	}
	var errs []error
	for i := 0; i < len(args); i += 2 {
		of := &p.TotalThroughput
		switch args[i] {
		case totalField:
		case reservedField:
			of = &p.ReservedThroughput
		default:
			errs = append(errs, &policy.FieldError{
				Field: args[i], Value: args[i+1],
				Reason: "unknown field: want " + reservedField + " or " + totalField,
			})
			continue
		}
		value, err := throughput(args[i], args[i+1])
		if errs = append(errs, err); *of != nil {
			errs = append(errs, &policy.FieldError{
				Field: args[i], Value: args[i+1], Reason: "is set twice: want each field once",
			})
		}
		*of = value
	}
	if r, t := p.ReservedThroughput, p.TotalThroughput; r != nil && t != nil && *r > *t {
		errs = append(errs, &policy.FieldError{
			Field: reservedField, Value: fmt.Sprint(*r),
			Reason: fmt.Sprintf("is above %s, %d", totalField, *t),
		})
	}
	return p, errors.Join(errs...)
}

// negative rewrites the flag parser's error about BYTES of -5, which looks like a flag.
func negative(cmd *cobra.Command, err error) error {
	if e := cli.FlagError(cmd, err); errors.Is(e, err) {
		return err
	}
	_, value, _ := strings.Cut(err.Error(), " in ")
	return fmt.Errorf("BYTES %.200q: is negative: want bytes a second, such as 409600 or 1MiB; "+
		"quota clear removes a quota", value)
}

func newQuotaSetCommand(a *cli.App) *cobra.Command {
	var f change.SetFlags
	cmd := &cobra.Command{
		Use:   "set " + throttlingIDs + " FIELD BYTES [FIELD BYTES]",
		Short: "Set what an id reserves, its total, or both",
		Long: "Set what an id reserves (" + reservedField + "), its total (" + totalField + `), or both,
in bytes of cost a second, rounded up to pages of 4096. A total of 0 pauses the id.

All ids together may not reserve more than the capacity that the cluster declares:
throttle-admin set cluster capacity=BYTES. If they will do so when a temporary capacity or total
expires, this command, quota list and quota status warn.`,
		Example: `  throttle-admin quota set tag:reports total_throughput 409600
  throttle-admin quota set tenant:acme reserved_throughput 1MiB total_throughput 8MiB
  throttle-admin quota set tag:reports total_throughput 0 --for 10m`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 3 {
				return fmt.Errorf("ID FIELD BYTES: missing: want tag:NAME %s 409600", totalField)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, idErr := quotastate.ParseID(args[0])
			p, err := parseQuota(args[1:])
			ttl, ttlErr := f.TTL(cmd)
			if err := errors.Join(idErr, err, ttlErr, change.CheckTemporary(p, ttl)); err != nil {
				return cli.Usage(err)
			}
			changes := func(s configstore.Snapshot) ([]configstore.Change, error) {
				if ttl != 0 {
					return s.SetFor(id, p, ttl), nil
				}
				return s.Set(id, p), fits(s, id, p)
			}
			return changeQuota(a, cmd, f.Flags, id, "Successfully updated quota.", changes)
		},
	}
	cmd.Flags().StringVar(&f.For, "for", "",
		"set a temporary total, for a duration such as 2h; then the permanent one applies again")
	f.Flags.Add(cmd)
	cmd.SetFlagErrorFunc(negative)
	return cmd
}

// fits returns an error if a part of a quota does not fit the other part, which is stored.
func fits(s configstore.Snapshot, id policy.Scope, p policy.Policy) error {
	stored, _ := s.Permanent(id)
	after := stored.Overlay(p)
	r, t := after.ReservedThroughput, after.TotalThroughput
	switch {
	case r == nil || *r == 0 || t != nil && *r <= *t:
		return nil
	case t == nil:
		return cli.Hint(
			&policy.FieldError{Field: reservedField, Value: fmt.Sprint(*r),
				Reason: fmt.Sprintf("needs a permanent %s, and %s has none", totalField, id)},
			fmt.Sprintf("set both: throttle-admin quota set %s %s %d %s BYTES",
				id, reservedField, *r, totalField),
		)
	case p.ReservedThroughput != nil:
		return cli.Hint(
			&policy.FieldError{Field: reservedField, Value: fmt.Sprint(*r),
				Reason: fmt.Sprintf("is above %s, %d", totalField, *t)},
			fmt.Sprintf("reserve less, or set both: throttle-admin quota set %s %s %d %s BYTES",
				id, reservedField, *r, totalField),
		)
	}
	return cli.Hint(
		&policy.FieldError{Field: totalField, Value: fmt.Sprint(*t),
			Reason: fmt.Sprintf("is below %s, %d", reservedField, *r)},
		fmt.Sprintf("raise it, or set both: throttle-admin quota set %s %s %d %s BYTES",
			id, totalField, *t, reservedField),
	)
}

func newQuotaClearCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	cmd := &cobra.Command{
		Use:     "clear " + throttlingIDs,
		Short:   "Remove an id's quota",
		Long:    "Remove an id's quota: its total and what it reserves. A tenant's other limits stay.",
		Example: `  throttle-admin quota clear tag:reports`,
		Args:    cli.Args("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := quotastate.ParseID(args[0])
			if err != nil {
				return cli.Usage(err)
			}
			changes := func(s configstore.Snapshot) ([]configstore.Change, error) {
				return s.Unset(id, "reservedThroughput", "totalThroughput"), nil
			}
			return changeQuota(a, cmd, f, id, "Successfully cleared quota.", changes)
		},
	}
	f.Add(cmd)
	return cmd
}

// changeQuota changes a quota. In place of the table of changes it prints done, the text that
// FoundationDB's command prints.
func changeQuota(
	a *cli.App, cmd *cobra.Command, f change.Flags, id policy.Scope, done string,
	changes func(configstore.Snapshot) ([]configstore.Change, error),
) error {
	plan := change.Plan{
		Review: "get " + cli.Quote(id),
		Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
			if err := cli.Readable(s, id); err != nil {
				return nil, err
			}
			return changes(s)
		},
	}
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
		Long:  "Show an id's quota, or one field of it, in bytes of cost a second; <empty> without one.",
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
				err = errors.Join(err, &policy.FieldError{
					Field: "field", Value: field,
					Reason: "unknown field: want " + reservedField + " or " + totalField,
				})
			}
			if err != nil {
				return cli.Usage(err)
			}
			s, err := a.Policies(cmd.Context())
			if err != nil {
				return err
			}
			set, _ := policy.NewSet(s.Entries) // usable without its invalid entries
			if err := cli.Readable(s, id); err != nil {
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
