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
	"github.com/dispatchthrottle/throttle/policy"
)

// An overtakenError reports that others have changed policies since a change was planned.
type overtakenError struct {
	*configstore.ConflictError
	by []configstore.Record // what they did, the newest first, as far as the history tells
}

func (e *overtakenError) Unwrap() error { return e.ConflictError }

func (e *overtakenError) Error() string {
	lines := []error{e.ConflictError}
	for i, r := range e.by {
		if i == maxRecords {
			lines = append(lines, fmt.Errorf("and %d more", len(e.by)-i))
			break
		}
		lines = append(lines, errors.New(RecordOf(r).String()))
	}
	return errors.Join(lines...).Error()
}

// maxRecords is how many records an error or a question lists.
const maxRecords = 20

// Latest returns the records that a question lists, and a line about the others.
func Latest(records []configstore.Record) (some []configstore.Record, more string) {
	if n := len(records) - maxRecords; n > 0 {
		return records[:maxRecords], fmt.Sprintf("and %d more: throttle-admin history\n", n)
	}
	return records, ""
}

// question asks whether the change is to be made all the same.
func (e *overtakenError) question() string {
	var b strings.Builder
	output.Text(&b, "policies have changed since revision %d:", e.Want)
	some, more := Latest(e.by)
	WriteRecords(&b, some)
	return b.String() + more + "Make the change all the same?"
}

// apply stores the changes unless it is a dry run, and returns the store's revision. If others have
// made a change meanwhile, it prepares the changes again, unless the two concern the same scope and
// the plan is not urgent.
func (f Flags) apply(
	ctx context.Context, store configstore.Store, urgent bool,
	prepare func(configstore.Snapshot) ([]configstore.Change, error),
) (int64, error) {
	s, err := store.List(ctx)
	if err != nil {
		return 0, err
	}
	if f.Revision != 0 && s.Applied > f.Revision { // so does Apply, which may not be called
		return 0, f.overtaken(ctx, store, s.Applied)
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
		if at := newestOf(s, changes); f.Revision != 0 && at > f.Revision { // past the tools
			return 0, f.overtaken(ctx, store, at)
		}
		// An empty store may have revision 0, which would mean "in any case".
		c.IfRevision = cmp.Or(f.Revision, s.Revision, 1)
		revision, err := store.Apply(ctx, c)
		conflict, ok := errors.AsType[*configstore.ConflictError](err)
		if !ok {
			return revision, err
		}
		if f.Revision != 0 {
			return 0, f.overtaken(ctx, store, conflict.Have)
		}
		before := s
		if s, err = store.List(ctx); err != nil {
			return 0, err
		}
		if !urgent && differs(before, s, changes) {
			return 0, &overtakenError{conflict, newerThan(ctx, store, before.Revision, changes)}
		}
	}
}

// overtaken returns what others have done since f.Revision.
func (f Flags) overtaken(ctx context.Context, store configstore.Store, have int64) error {
	conflict := &configstore.ConflictError{Have: have, Want: f.Revision}
	return &overtakenError{conflict, newerThan(ctx, store, f.Revision, nil)}
}

// concerned returns the scopes of changes, by their permanent entries.
func concerned(changes []configstore.Change) map[configstore.Key]bool {
	keys := make(map[configstore.Key]bool)
	for _, c := range changes {
		keys[c.Whole()] = true
	}
	return keys
}

// newestOf returns the revision of the newest entry of the scopes that changes concern.
func newestOf(s configstore.Snapshot, changes []configstore.Change) (revision int64) {
	keys := concerned(changes)
	for _, e := range s.Entries {
		if keys[configstore.KeyOf(e).Whole()] {
			revision = max(revision, e.Revision)
		}
	}
	return revision
}

// differs reports whether two snapshots differ in a scope that changes concern.
func differs(a, b configstore.Snapshot, changes []configstore.Change) bool {
	keys := concerned(changes)
	of := func(s configstore.Snapshot) []policy.Entry {
		return slices.DeleteFunc(slices.Clone(s.Entries), func(e policy.Entry) bool {
			return !keys[configstore.KeyOf(e).Whole()]
		})
	}
	return !slices.EqualFunc(of(a), of(b), func(a, b policy.Entry) bool {
		return configstore.KeyOf(a) == configstore.KeyOf(b) && configstore.Same(a, b)
	})
}

// newerThan returns the records after a revision, of changes to the scopes of these changes; of all
// if there are none. It returns those that it can read.
func newerThan(
	ctx context.Context, store configstore.Store, revision int64, changes []configstore.Change,
) (records []configstore.Record) {
	keys := concerned(changes)
	for r, err := range store.History(ctx) {
		if err != nil || r.Revision <= revision {
			break
		}
		same := func(c configstore.Changed) bool { return keys[c.Whole()] }
		if len(changes) == 0 || slices.ContainsFunc(r.Changes, same) {
			records = append(records, r)
		}
	}
	return records
}
