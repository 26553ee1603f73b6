package change

import (
	"errors"
	"fmt"
	"slices"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// Reset plans to end the temporary values that a scope has in a section: those of some fields, or
// all. The errors name fields that have none.
func Reset(
	s configstore.Snapshot, section policy.Section, scope policy.Scope, fields ...string,
) (changes []configstore.Change, err error) {
	var temporary []string
	for _, e := range s.Entries {
		if e.Section() != section || e.Scope != scope || !e.Temporary {
			continue
		}
		temporary = append(temporary, e.Field)
		if len(fields) == 0 || slices.Contains(fields, e.Field) {
			changes = append(changes, configstore.Change{Key: configstore.KeyOf(e)})
		}
	}
	if len(temporary) == 0 {
		return nil, cli.Hint(fmt.Errorf("scope %q: has no temporary values", scope),
			"show all policies: throttle-admin list")
	}
	var errs []error
	for _, field := range fields {
		if !slices.Contains(temporary, field) {
			errs = append(errs, cli.ArgError("FIELD", field, "not temporary now"))
		}
	}
	return changes, cli.Usage(errors.Join(errs...))
}
