package change

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/policy"
)

func TestFieldsOfArguments(t *testing.T) {
	p, unset, err := ParseFields(policy.PolicySection, []string{
		"messageRate=10/1m", "byteRate=1MiB", "paused=false", "round=200ms", "burst=", "mode=shadow",
		"priority=-3", "ramp.over=1m",
		"busy.outcomes=busy,timeout", "ramp.from=",
	})
	require.NoError(t, err)
	assert.Equal(t, []string{"burst", "ramp.from"}, unset)
	assert.Equal(t, "messageRate=10/1m byteRate=1048576/s round=200ms mode=shadow paused=false "+
		"priority=-3 ramp.over=1m busy.outcomes=busy,timeout", output.Fields(p))
	for _, bad := range []string{
		"burst=1e400", "burst={}", "burst=null", "burst=1.5", "paused=maybe", "round=0", "round=\xff",
		"messageRate=+Inf", "=1", "", "ramp=", "rampOver=1m", "total=5",
	} {
		_, _, err := ParseFields(policy.PolicySection, []string{bad})
		assert.Error(t, err, bad)
	}
}

// FuzzFields: whatever is typed, a field is set, unset, or refused.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{
		"burst=1", "mode=shadow", "round=1s", "byteRate=1GiB/1h", "x=", "paused=\"true\"",
		"burst={\"a\":[1]}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		for _, section := range policy.Sections() {
			p, unset, err := ParseFields(section, []string{arg})
			if err == nil && policy.IsZero(p) && len(unset) != 1 {
				t.Errorf("%v: %q: neither set nor unset nor refused", section, arg)
			}
		}
	})
}
