package console

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
)

// TestQuotaPoints: what was decided in the last hour, by id, without what is over.
func TestQuotaPoints(t *testing.T) {
	p, start := newQuotaPoints(), time.Unix(1_800_000_000, 0)
	at := func(n int) time.Time { return start.Add(time.Duration(n) * quotasEvery) }
	for n := range 2 * quotaHour {
		s := ratekeeper.Status{Decisions: []quota.Decision{{ID: "tag:a", Smoothed: float64(n), Cost: 7}}}
		if n >= quotaHour+10 {
			s.Decisions = append(s.Decisions, quota.Decision{ID: "tag:b", Smoothed: 5})
		}
		if n == 0 || n == 2*quotaHour-1 {
			s.Readers = []quota.Reader{{Backend: "x", Ratio: 0.5}, {Backend: "y"}}
		}
		p.add(s, at(n))
	}
	all := p.since(0)
	require.Len(t, all.Times, quotaHour)
	assert.Equal(t, at(quotaHour).Unix(), all.Times[0])
	require.Len(t, all.InForce, 2)
	assert.Equal(t, "tag:a", all.InForce[0].Name)
	assert.EqualValues(t, quotaHour, all.InForce[0].Values[0])
	text, err := json.Marshal(all.InForce[1].Values[8:12])
	require.NoError(t, err)
	assert.Equal(t, "[null,null,5,5]", string(text))
	require.Len(t, all.Backends, 1)
	assert.EqualValues(t, 2, all.Backends[0].Values[quotaHour-1], "twice what it bears")
	last := p.since(at(2*quotaHour - 3).Unix())
	assert.Len(t, last.Times, 2)
	assert.Len(t, last.Costs[0].Values, 2)
	assert.Empty(t, p.since(at(2*quotaHour).Unix()).Times)
	p.add(ratekeeper.Status{Decisions: []quota.Decision{{ID: "tag:a", Smoothed: 3}}}, at(2*quotaHour+9))
	values := p.since(0).InForce[0].Values
	text, err = json.Marshal(values[quotaHour-3:])
	require.NoError(t, err)
	assert.Equal(t, "[719,null,3]", string(text), "what was between is unknown")
	for n := range quotaHour {
		p.add(ratekeeper.Status{}, at(2*quotaHour+10+n))
	}
	assert.Empty(t, p.since(0).InForce, "ids that are no more are forgotten")
}
