// Package quotas has the commands for throughput quotas, and the ratekeeper.
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
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/overcommit"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this family.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newQuotaCommand(a), newRatekeeperCommand(a)}
}

// The fields of a quota, as they are known.
const (
	reservedField = "reserved_throughput"
	totalField    = "total_throughput"
)

const throttlingIDs = "tenant:NAME|tag:NAME"

func newQuotaCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "Throughput quotas of tenants and tags, in bytes of cost a second",
		Long: `Throughput quotas of tenants and tags, in bytes of cost a second: what an id reserves it always has, its
total it never exceeds. A message costs its bytes in pages of 4096, at least one; written ones cost
4 times that. A subscription belongs to the tenant group that it was opened with, else to its tag if that has
a quota, else to its topic's tenant. The rates are found by a ratekeeper: see throttle-admin ratekeeper.`,
		Example: `  throttle-admin quota set tag:reports total_throughput 1MiB
  throttle-admin quota get tag:reports total_throughput
  throttle-admin quota status`,
		RunE: cli.Subcommands,
	}
	cmd.AddCommand(newQuotaSetCommand(a), newQuotaGetCommand(a), newQuotaClearCommand(a), newQuotaListCommand(a), newQuotaStatusCommand(a))
	return cmd
}

// throughput reads bytes a second, rounded up to a page.
func throughput(field, text string) (*int64, error) {
	n, err := policy.ParseThroughput(text)
	if fault, ok := errors.AsType[*policy.FieldError](err); ok {
		return nil, &policy.FieldError{Field: field, Value: text, Reason: fault.Reason}
	}
	quotastate.ToPages(&n)
	return &n, nil
}

// parseQuota reads pairs of a field and its value.
func parseQuota(args []string) (p policy.Policy, err error) {
	if len(args) == 0 || len(args)%2 != 0 {
		return p, fmt.Errorf("FIELD BYTES: one of them is missing: write %s 409600, %s 40960, or both", totalField, reservedField)
	}
	var errs []error
	for i := 0; i < len(args); i += 2 {
		of := &p.TotalThroughput
		switch args[i] {
		case totalField:
		case reservedField:
			of = &p.ReservedThroughput
		default:
			errs = append(errs, &policy.FieldError{Field: args[i], Value: args[i+1], Reason: "is an unknown field: use " + reservedField + " or " + totalField})
			continue
		}
		value, err := throughput(args[i], args[i+1])
		if errs = append(errs, err); *of != nil {
			errs = append(errs, &policy.FieldError{Field: args[i], Value: args[i+1], Reason: "is given twice: keep one of them"})
		}
		*of = value
	}
	if r, t := p.ReservedThroughput, p.TotalThroughput; r != nil && t != nil && *r > *t {
		errs = append(errs, &policy.FieldError{Field: reservedField, Value: fmt.Sprint(*r), Reason: fmt.Sprintf("is above %s, %d: lower the one, or raise the other", totalField, *t)})
	}
	return p, errors.Join(errs...)
}

// negative says of -5, which the flag parser takes for a flag, that it is no throughput.
func negative(cmd *cobra.Command, err error) error {
	if told := cli.FlagError(cmd, err); errors.Is(told, err) {
		return err
	}
	_, value, _ := strings.Cut(err.Error(), " in ")
	return fmt.Errorf("BYTES %.200q: is negative: write bytes a second, such as 409600 or 1MiB; quota clear takes a quota away", value)
}

func newQuotaSetCommand(a *cli.App) *cobra.Command {
	var f change.SetFlags
	cmd := &cobra.Command{
		Use:   "set " + throttlingIDs + " FIELD BYTES [FIELD BYTES]",
		Short: "Set what an id reserves, its total, or both at once",
		Long: `Set what an id reserves (` + reservedField + `), its total (` + totalField + `), or both at once, in bytes of cost a
second, rounded up to pages of 4096. A total of 0 pauses. What all ids reserve may not be above the capacity
that the cluster declares: throttle-admin set cluster capacity=BYTES. Where it will be, because a temporary
capacity or total ends, that is said, here and by quota list and quota status.`,
		Example: `  throttle-admin quota set tag:reports total_throughput 409600
  throttle-admin quota set tenant:acme reserved_throughput 1MiB total_throughput 8MiB
  throttle-admin quota set tag:reports total_throughput 0 --for 10m`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 3 {
				return fmt.Errorf("ID FIELD BYTES: %d of 3 are there: write %s %s 409600", len(args), "tag:NAME", totalField)
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
			return changeQuota(a, cmd, f.Flags, id, "Successfully updated quota.", func(s configstore.Snapshot) ([]configstore.Change, error) {
				if ttl != 0 {
					return s.SetFor(id, p, ttl), nil
				}
				return s.Set(id, p), fits(s, id, p)
			})
		},
	}
	cmd.Flags().StringVar(&f.Lasting, "for", "", "how long a total holds, such as 2h; then what was there before comes back")
	f.Flags.Add(cmd)
	cmd.SetFlagErrorFunc(negative)
	return cmd
}

// fits says what is wrong with a part of a quota beside the part that is stored, and what would be right.
func fits(s configstore.Snapshot, id policy.Scope, p policy.Policy) error {
	stored, _ := s.Permanent(id)
	after := stored.Overlay(p)
	r, t := after.ReservedThroughput, after.TotalThroughput
	switch {
	case r == nil || *r == 0 || t != nil && *r <= *t:
		return nil
	case t == nil:
		return cli.Hint(
			&policy.FieldError{Field: reservedField, Value: fmt.Sprint(*r), Reason: fmt.Sprintf("has no %s beside it: %s has none for good", totalField, id)},
			fmt.Sprintf("set both at once: throttle-admin quota set %s %s %d %s BYTES", id, reservedField, *r, totalField),
		)
	case p.ReservedThroughput != nil:
		return cli.Hint(
			&policy.FieldError{Field: reservedField, Value: fmt.Sprint(*r), Reason: fmt.Sprintf("is above %s, %d", totalField, *t)},
			fmt.Sprintf("reserve less, or set both at once: throttle-admin quota set %s %s %d %s BYTES", id, reservedField, *r, totalField),
		)
	}
	return cli.Hint(
		&policy.FieldError{Field: totalField, Value: fmt.Sprint(*t), Reason: fmt.Sprintf("is below %s, %d", reservedField, *r)},
		fmt.Sprintf("raise it, or set both at once: throttle-admin quota set %s %s %d %s BYTES", id, totalField, *t, reservedField),
	)
}

func newQuotaClearCommand(a *cli.App) *cobra.Command {
	var f change.Flags
	cmd := &cobra.Command{
		Use:     "clear " + throttlingIDs,
		Short:   "Clear both parts of an id's quota: nothing limits it then",
		Long:    "Clear both parts of an id's quota: nothing limits it then. A tenant's other limits stay.",
		Example: `  throttle-admin quota clear tag:reports`,
		Args:    cli.Args("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := quotastate.ParseID(args[0])
			if err != nil {
				return cli.Usage(err)
			}
			return changeQuota(a, cmd, f, id, "Successfully cleared quota.", func(s configstore.Snapshot) ([]configstore.Change, error) {
				return s.Unset(id, "reservedThroughput", "totalThroughput"), nil
			})
		},
	}
	f.Add(cmd)
	return cmd
}

// changeQuota changes a quota, and says what was published to be said.
func changeQuota(a *cli.App, cmd *cobra.Command, f change.Flags, id policy.Scope, done string, make func(configstore.Snapshot) ([]configstore.Change, error)) error {
	changes := func(s configstore.Snapshot) ([]configstore.Change, error) {
		if err := cli.Readable(s, id); err != nil {
			return nil, err
		}
		return make(s)
	}
	if a.Output == "table" && !f.DryRun {
		quiet := *a
		quiet.Stdout = io.Discard
		if err := change.Run(&quiet, cmd, f, change.Plan{Review: "get " + cli.Quote(id), Make: changes}); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.Stdout, done)
		return err
	}
	return change.Run(a, cmd, f, change.Plan{Review: "get " + cli.Quote(id), Make: changes})
}

func newQuotaGetCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "get " + throttlingIDs + " [" + reservedField + "|" + totalField + "]",
		Short: "Show an id's quota, or one part of it",
		Long:  "Show an id's quota, or one part of it, in bytes of cost a second; <empty> if it has none.",
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
				err = errors.Join(err, &policy.FieldError{Field: "field", Value: field, Reason: "is unknown: use " + reservedField + " or " + totalField})
			}
			if err != nil {
				return cli.Usage(err)
			}
			return quotastate.With(cmd.Context(), a, func(s configstore.Snapshot, set *policy.Set) error {
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
						fmt.Fprintf(w, "%s %d\n%s %d\n", reservedField, *v.Reserved, totalField, *v.Total)
					}
				})
			})
		},
	}
}

func newQuotaListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Show all quotas",
		Example: `  throttle-admin quota list`,
		Args:    cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return quotastate.With(cmd.Context(), a, func(s configstore.Snapshot, set *policy.Set) error {
				type list struct {
					Capacity int64              `json:"capacity,omitempty"` // declared, bytes of cost a second
					Reserved int64              `json:"reserved"`           // of all ids
					Quotas   []quotastate.View  `json:"quotas"`
					Over     *overcommit.Excess `json:"overCommitted,omitempty"`
				}
				now := time.Now()
				l := list{Capacity: set.Ratekeeping().Capacity, Quotas: []quotastate.View{}, Over: overcommit.Quotas(s.Entries, now)}
				for id, q := range set.Quotas() {
					l.Quotas = append(l.Quotas, quotastate.ViewOf(id, q, s))
					l.Reserved += q.Reserved
				}
				for _, e := range s.Entries {
					if e.Err != nil && (e.Scope.Kind == policy.TenantKind || e.Scope.Kind == policy.TagKind) {
						a.Warn("%s cannot be read, so that its quota is missing here: %v", e.Scope, e.Err)
					}
				}
				slices.SortFunc(l.Quotas, func(a, b quotastate.View) int { return strings.Compare(a.ID, b.ID) })
				return a.Print(l, func(w *strings.Builder) {
					if len(l.Quotas) == 0 {
						fmt.Fprintln(w, "<empty>")
						return
					}
					var rows [][]string
					for _, q := range l.Quotas {
						lasts := "for good"
						if !q.Expires.IsZero() {
							lasts = "its total " + output.Left(q.Expires, now)
						}
						rows = append(rows, []string{q.ID, fmt.Sprint(*q.Reserved), fmt.Sprint(*q.Total), string(q.Mode), lasts})
					}
					output.Table(w, []string{"ID", "RESERVED", "TOTAL", "MODE", "LASTS"}, rows)
					capacity := "no capacity declared"
					if l.Capacity > 0 {
						capacity = fmt.Sprintf("of a capacity of %d", l.Capacity)
					}
					fmt.Fprintf(w, "reserved in all: %d bytes of cost a second, %s\n", l.Reserved, capacity)
					if l.Over != nil {
						output.Text(w, "%s", l.Over.Say(now))
					}
				})
			})
		},
	}
}
