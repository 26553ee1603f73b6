package explain

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestQuotaTablesFit whatever the names are.
func TestQuotaTablesFit(t *testing.T) {
	long := strings.Repeat("long-name-", 25)
	d := quota.Decision{
		ID: quota.ID("tag:" + long), Quota: quota.Quota{Reserved: 1 << 53, Total: 1 << 53}, Limiting: 1e15, Busy: true,
		Zones: []quota.ZoneLimit{{Zone: "b", Rate: 1}, {Zone: long, Rate: 1e15}},
	}
	reader := quota.Reader{Backend: long, Zone: long, ID: d.ID, Cost: 1 << 53, Busyness: 1, Ratio: 1}
	var out strings.Builder
	x := quotaExplanation{ID: string(d.ID), Cluster: long, Keeper: long, Decision: d, Readers: []quota.Reader{reader}}
	x.addReasons()
	x.table(&out, policy.EffectiveQuota{Reserved: 1 << 53, Total: 1 << 53})
	writeRate(&out, quotastate.Rate{
		ID: string(d.ID), Reserved: 1 << 53, Total: 1 << 53, AverageCost: 1 << 53, InForce: new(1e15), By: "reserved",
	})
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, len(line), output.MaxWidth+1, line)
	}
}
