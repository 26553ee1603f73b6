package configstore_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestTies: a change by which two patterns tie is refused. A stored pattern without settings, such
// as one that could never be read, ties with none: nobody could correct it by changing others.
func TestTies(t *testing.T) {
	limit := policy.Policy{MessageRate: policy.PerSecond(1)}
	stored := policy.Entry{Scope: policy.PatternScope("a."), Settings: limit}
	c := configstore.Commit{Changes: []configstore.Change{
		{Key: configstore.Key{Scope: policy.PatternScope("b.")}, Settings: limit},
	}}
	tie := new(policy.TieError)
	assert.ErrorAs(t, c.Check([]policy.Entry{stored}), &tie)
	stored.Settings, stored.Err = policy.Policy{}, assert.AnError
	assert.NoError(t, c.Check([]policy.Entry{stored}))
}
