package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/printable"
)

// An overtakenError reports that others have changed policies since a change was planned.
type overtakenError struct {
	*configstore.ConflictError
	by []configstore.Record // what they did, the newest first, as far as the history tells
}

func (e *overtakenError) Unwrap() error { return e.ConflictError }

func (e *overtakenError) Error() string {
	lines := []error{e.ConflictError}
	for _, r := range e.by {
		lines = append(lines, errors.New(RecordOf(r).String()))
	}
	return errors.Join(lines...).Error()
}

// question asks whether the change is to be made all the same.
func (e *overtakenError) question() string {
	var b strings.Builder
	output.Text(&b, "policies have changed since revision %d:", e.Want)
	WriteRecords(&b, e.by)
	return b.String() + "Make the change all the same?"
}

// apply stores the changes unless it is a dry run, and returns the store's revision. If others have
// made a change meanwhile, it prepares the changes again, unless the two concern the same scope.
func (f Flags) apply(
	ctx context.Context, store configstore.Store,
	prepare func(configstore.Snapshot) ([]configstore.Change, error),
) (int64, error) {
	s, err := store.List(ctx)
	if err != nil {
		return 0, err
	}
	if f.Revision != 0 && s.Applied > f.Revision { // so does Apply, which may not be called
		conflict := &configstore.ConflictError{Have: s.Applied, Want: f.Revision}
		return 0, &overtakenError{conflict, newerThan(ctx, store, f.Revision, nil)}
	}
	for {
		changes, err := prepare(s)
		if err != nil {
			return 0, err
		}
		c := configstore.Commit{By: f.by(), Changes: changes}
		if len(changes) == 0 || f.DryRun {
			return s.Revision, c.Check(s.Entries)
		}
		// An empty store may have revision 0, which would mean "in any case".
		c.IfRevision = cmp.Or(f.Revision, s.Revision, 1)
		revision, err := store.Apply(ctx, c)
		conflict, ok := errors.AsType[*configstore.ConflictError](err)
		if !ok {
			return revision, err
		}
		if f.Revision != 0 {
			return 0, &overtakenError{conflict, newerThan(ctx, store, f.Revision, nil)}
		}
		if others := newerThan(ctx, store, s.Revision, changes); len(others) > 0 {
			return 0, &overtakenError{conflict, others}
		}
		if s, err = store.List(ctx); err != nil {
			return 0, err
		}
	}
}

// newerThan returns the records after a revision, of changes to the scopes of these changes; of all
// if there are none. It returns those that it can read.
func newerThan(
	ctx context.Context, store configstore.Store, revision int64, changes []configstore.Change,
) (records []configstore.Record) {
	concerned := make(map[configstore.Key]bool)
	for _, c := range changes {
		concerned[c.Whole()] = true
	}
	for r, err := range store.History(ctx) {
		if err != nil || r.Revision <= revision {
			break
		}
		same := func(c configstore.Changed) bool { return concerned[c.Whole()] }
		if len(changes) == 0 || slices.ContainsFunc(r.Changes, same) {
			records = append(records, r)
		}
	}
	return records
}

// String returns a record as one line, in which what is not printable is escaped.
func (v RecordView) String() string {
	return printable.Line(fmt.Sprintf("revision %d, %s, by %s: %s", v.Revision, when(v.Time), v.by(), v.what(maxShown)))
}
