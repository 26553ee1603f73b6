// Package history holds the commands that show who changed what, and that undo it.
package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands are the commands of this package.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newHistoryCommand(a), newRollbackCommand(a)}
}

const revisionForm = `R is a revision that history lists.`

var settings = change.SettingsCommand{
	Section: policy.HistorySettingsSection,
	Parent:  "history",
	Of:      "the history",
	Example: `  throttle-admin history settings
  throttle-admin history settings reasonRequired=true -m 'we want to know'`,
	InForce: func(s *policy.Set) policy.Settings { return s.HistorySettings() },
}

// A listReport is what history prints.
type listReport struct {
	Records []change.RecordView `json:"records"`        // the newest first
	Next    int64               `json:"next,omitempty"` // older ones follow: --before
}

func newHistoryCommand(a *cli.App) *cobra.Command {
	var subscription string
	var limit int
	var before int64
	var inherited bool
	cmd := &cobra.Command{
		Use:   "history [SCOPE]",
		Short: "Show who changed policies and quotas, when and why",
		Long: `Show who changed policies and quotas, when and why: of one scope or of all, the newest
change first. With --inherited, of a topic's URL and of all scopes that apply to that topic: the
cluster, its tenant and namespace, patterns that match, and its subscriptions.

A change that was made past throttle-admin, with etcdctl or an editor, is found when the history
is read, and recorded by the next change. Its author is unknown, and so is what it replaced if it
was made in several steps. In etcd, the last 10,000 changes are kept, for 400 days, and at most
64 MiB of them; a file has up to 8 MiB of them beside it, in FILE.history.`,
		Example: `  throttle-admin history
  throttle-admin history kafka://public/default/orders --subscription billing
  throttle-admin history kafka://public/default/orders --inherited
  throttle-admin history --limit 100 --before 41000 -o json
  throttle-admin history show 41000`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var wanted func(policy.Scope) bool // nil: all
			of := ""
			switch {
			case len(args) > 0:
				scope, err := a.ScopeOf(cmd, args[0])
				if err != nil {
					return cli.Usage(err)
				}
				of = " " + cli.Quote(scope)
				wanted = func(s policy.Scope) bool { return s == scope }
				if inherited {
					if scope.Kind != policy.TopicKind {
						return cli.Usage(cli.ArgError("SCOPE", args[0], "--inherited: want the URL of a topic"))
					}
					of += " --inherited"
					wanted = func(s policy.Scope) bool { return s.AppliesTo(a.Cluster, scope.Topic) }
				}
			case inherited:
				return cli.Usage(errors.New("--inherited: want the URL of a topic before it"))
			case cmd.Flags().Changed("subscription"):
				return cli.Usage(errors.New("--subscription: want the URL of its topic before it"))
			}
			if limit < 1 {
				return cli.Usage(fmt.Errorf("--limit \"%d\": out of range: want 1 or more", limit))
			}
			var r listReport
			var shown []configstore.Record
			err := a.WithStore(cmd.Context(), func(ctx context.Context, store configstore.Store) error {
				for record, err := range store.History(ctx) {
					switch {
					case err != nil:
						return err
					case before != 0 && record.Revision >= before, !concerns(record, wanted):
						continue
					case len(shown) == limit:
						r.Next = shown[limit-1].Revision
						return nil
					}
					shown = append(shown, only(record, wanted))
				}
				return nil
			})
			if err != nil {
				return err
			}
			r.Records = []change.RecordView{}
			for _, record := range shown {
				r.Records = append(r.Records, change.RecordOf(record))
			}
			return a.Print(r, func(w *strings.Builder) {
				if len(shown) == 0 {
					fmt.Fprintln(w, "no changes are recorded")
					return
				}
				change.WriteRecords(w, shown)
				if r.Next != 0 {
					fmt.Fprintf(w, "older ones: throttle-admin history%s --before %d\n", of, r.Next)
				}
			})
		},
	}
	cli.AddSubscription(cmd, &subscription)
	cmd.Flags().IntVar(&limit, "limit", 20, "how many changes are shown")
	cmd.Flags().BoolVar(&inherited, "inherited", false, "of a topic: also the changes of scopes that apply to it")
	cmd.Flags().Int64Var(&before, "before", 0, "only those before this revision")
	cmd.AddCommand(newShowCommand(a), newDiffCommand(a), settings.New(a))
	return cmd
}

// concerns reports whether a record changed a scope that is wanted.
func concerns(r configstore.Record, wanted func(policy.Scope) bool) bool {
	return wanted == nil || slices.ContainsFunc(r.Changes, func(c configstore.Changed) bool { return wanted(c.Scope) })
}

// only returns a record with what it changed of the scopes that are wanted.
func only(r configstore.Record, wanted func(policy.Scope) bool) configstore.Record {
	if wanted != nil {
		r.Changes = slices.DeleteFunc(slices.Clone(r.Changes), func(c configstore.Changed) bool { return !wanted(c.Scope) })
	}
	return r
}

// parseRevision reads an argument R.
func parseRevision(text string) (int64, error) {
	r, err := strconv.ParseInt(text, 10, 64)
	if err != nil || r < 1 {
		return 0, cli.Usage(cli.ArgError("R", text, "invalid revision: want one that throttle-admin history lists"))
	}
	return r, nil
}

// A past is a store with its history back to some revision.
type past struct {
	configstore.Snapshot
	newer []configstore.Record // those that may be after the revision, the newest first
	at    configstore.Record   // the one that made the revision, if there is one

	// oldest is the oldest revision that was read.
	oldest int64
}

// readPast reads a store and its history back to a revision.
func readPast(ctx context.Context, a *cli.App, revision int64) (p past, err error) {
	err = a.WithStore(ctx, func(ctx context.Context, store configstore.Store) (err error) {
		if p.Snapshot, err = store.List(ctx); err != nil {
			return err
		}
		p.oldest = p.Revision
		for r, err := range store.History(ctx) {
			if err != nil {
				return err
			}
			p.oldest = min(p.oldest, r.Revision)
			if r.Revision == revision {
				p.at = r
			}
			if r.Revision <= revision && (r.Err == nil || !p.Plain) { // of a file's, one may be newer
				break
			}
			p.newer = append(p.newer, r)
		}
		return nil
	})
	return p, err
}

// made returns the record that made a revision.
func (p past) made(revision int64) (configstore.Record, error) {
	if p.at.Revision != revision {
		return p.at, cli.Hint(fmt.Errorf("no change is recorded that made revision %d", revision),
			"throttle-admin history lists those that are")
	}
	return p.at, nil
}

// reaches returns an error if the history does not reach back to a revision.
func (p past) reaches(revision int64) error {
	newest := p.Revision
	if len(p.newer) > 0 {
		newest = max(newest, p.newer[0].Revision)
	}
	if revision > newest {
		return fmt.Errorf("revision %d is not yet: the store is at %d", revision, newest)
	}
	if p.oldest > revision {
		return fmt.Errorf("the history begins at revision %d, after %d", p.oldest, revision)
	}
	return nil
}

func newShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "show R",
		Short:   "Show one change in full",
		Long:    "Show one change in full. " + revisionForm,
		Example: "  throttle-admin history show 41000",
		Args:    cli.Args("R"),
		RunE: func(cmd *cobra.Command, args []string) error {
			revision, err := parseRevision(args[0])
			if err != nil {
				return err
			}
			p, err := readPast(cmd.Context(), a, revision)
			if err != nil {
				return err
			}
			r, err := p.made(revision)
			if err != nil {
				return err
			}
			v := change.RecordOf(r)
			return a.Print(v, v.Write)
		},
	}
}

// A diffReport is what history diff prints.
type diffReport struct {
	From    int64         `json:"from"`
	To      int64         `json:"to"`
	Changes []change.View `json:"changes"`
}

func newDiffCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "diff R [R2]",
		Short: "Show what differs between two revisions",
		Long: `Show what differs between what was stored at revision R, and at R2 or now. Temporary
values that have ended are left out. R is any revision since the oldest that history lists.`,
		Example: `  throttle-admin history diff 41000
  throttle-admin history diff 41000 43000 -o json`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var revisions []int64
			for _, arg := range args {
				r, err := parseRevision(arg)
				if err != nil {
					return err
				}
				revisions = append(revisions, r)
			}
			p, err := readPast(cmd.Context(), a, slices.Min(revisions))
			if err != nil {
				return err
			}
			report := diffReport{From: revisions[0], To: p.Revision}
			if len(revisions) == 2 {
				report.To = revisions[1]
			}
			err = errors.Join(p.reaches(report.From), p.reaches(report.To), p.unreadable(slices.Min(revisions)))
			if err != nil {
				return err
			}
			now := time.Now()
			report.Changes = change.Compare(p.as(report.From, now), p.as(report.To, now), now)
			return a.Print(report, func(w *strings.Builder) {
				if len(report.Changes) == 0 {
					fmt.Fprintf(w, "no differences between revisions %d and %d\n", report.From, report.To)
					return
				}
				change.WriteTable(w, report.Changes)
			})
		},
	}
}

// unreadable returns why records that may be after a revision cannot be read.
func (p past) unreadable(revision int64) (err error) {
	for _, r := range p.newer {
		if r.Revision >= revision {
			err = errors.Join(err, r.Err) // nil, if it can be read
		}
	}
	return err
}

// as returns what was stored as of a revision, without what has ended by now.
func (p past) as(revision int64, now time.Time) []policy.Entry {
	i, _ := slices.BinarySearchFunc(p.newer, revision, func(r configstore.Record, revision int64) int {
		if r.Revision > revision {
			return -1
		}
		return cmp.Compare(revision, r.Revision)
	})
	return slices.DeleteFunc(p.Before(p.newer[:i]), func(e policy.Entry) bool {
		return e.Temporary && e.Err == nil && !e.Expires.After(now)
	})
}
