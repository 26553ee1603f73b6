package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
)

type rollbackFlags struct {
	change.Flags
	to  int64 // 0: only the change of the argument is undone
	yes bool
}

func newRollbackCommand(a *cli.App) *cobra.Command {
	var f rollbackFlags
	cmd := &cobra.Command{
		Use:   "rollback R | --to R",
		Short: "Undo a change, or all changes after one",
		Long: `Undo the change that made revision R: each scope that it changed has again what it had
before. With --to R, undo all changes after R, so that everything is again as it was at R.

A rollback is a change of its own, with an author and a reason. A temporary value comes back for
the rest of its time; if that is over, what was below it is in force. If what R changed has been
changed again since, rollback shows that and asks, unless --yes is given. Without a terminal, it
is then refused (exit status 3).`,
		Example: `  throttle-admin rollback 41000 --dry-run
  throttle-admin rollback 41000 -m 'the load test is over'
  throttle-admin rollback --to 41000`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("to") == (len(args) == 1):
				return cli.Usage(errors.New("want R, the revision of one change, or --to R, and not both"))
			case len(args) == 0 && f.to < 1:
				return cli.Usage(cli.ArgError("--to", fmt.Sprint(f.to), "invalid revision: want 1 or more"))
			case len(args) == 0:
				return f.run(cmd, a, f.to)
			}
			revision, err := parseRevision(args[0])
			if err != nil {
				return err
			}
			return f.run(cmd, a, revision)
		},
	}
	cmd.Flags().Int64Var(&f.to, "to", 0, "undo all changes after this revision")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	f.Add(cmd)
	return cmd
}

func (f rollbackFlags) run(cmd *cobra.Command, a *cli.App, revision int64) error {
	ctx := cmd.Context()
	p, err := readPast(ctx, a, revision)
	if err != nil {
		return err
	}
	undone := p.newer
	reason := fmt.Sprintf("rollback to revision %d", revision)
	if f.to != 0 {
		err = p.reaches(revision)
	} else {
		var r configstore.Record
		if r, err = p.made(revision); err == nil {
			undone = []configstore.Record{r}
			reason = fmt.Sprintf("rollback of revision %d", revision)
			if !p.keeps(r) || len(p.since(r)) > 0 {
				err = f.ask(ctx, a, p, r)
			}
		}
	}
	if err != nil {
		return err
	}
	if f.By.Reason == "" {
		f.By.Reason = reason
	}
	if f.Revision == 0 {
		f.Revision = max(p.Revision, 1)
	}
	return change.Run(a, cmd, f.Flags, change.Plan{
		Review:   "history",
		Removing: true,
		Final:    true, // what is undone was read before
		Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
			changes, err := s.Undo(undone, time.Now())
			if err != nil {
				return nil, cli.Hint(err, fmt.Sprintf("see what there was: throttle-admin history show %d", revision))
			}
			return changes, nil
		},
	})
}

// keeps reports whether what a record changed is as it left it.
func (p past) keeps(r configstore.Record) bool {
	now := time.Now()
	return !slices.ContainsFunc(r.Changes, func(c configstore.Changed) bool { return !p.Keeps(c, now) })
}

// since returns the newer records that changed scopes of this one, or cannot be read.
func (p past) since(r configstore.Record) (records []configstore.Record) {
	changed := make(map[configstore.Key]bool)
	for _, c := range r.Changes {
		changed[c.Whole()] = true
	}
	for _, newer := range p.newer {
		same := func(c configstore.Changed) bool { return changed[c.Whole()] }
		if newer.Err != nil || slices.ContainsFunc(newer.Changes, same) {
			records = append(records, newer)
		}
	}
	return records
}

// ask asks whether a change is to be undone although others have changed the same scopes since.
func (f rollbackFlags) ask(
	ctx context.Context, a *cli.App, p past, r configstore.Record,
) error {
	since := p.since(r)
	some, more := change.Latest(since)
	if len(since) == 0 {
		more = "what it changed is not as it left it, and the history does not say why\n"
	}
	switch {
	case f.yes || f.DryRun:
		return nil
	case !a.Interactive():
		conflict := &configstore.ConflictError{Have: p.Revision, Want: r.Revision}
		lines := []error{conflict}
		for _, newer := range some {
			lines = append(lines, errors.New(change.RecordOf(newer).String()))
		}
		if more != "" {
			lines = append(lines, errors.New(strings.TrimSpace(more)))
		}
		return cli.Hint(errors.Join(lines...), "see what it would do with --dry-run, and confirm it with --yes")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "what revision %d changed has been changed since:\n", r.Revision)
	change.WriteRecords(&b, some)
	return a.Confirm(ctx, b.String()+more+"Undo it all the same?")
}
