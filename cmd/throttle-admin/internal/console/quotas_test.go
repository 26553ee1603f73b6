package console

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
)

// TestQuotaPoints: what was decided in the last hour, by id, without what is over.
func TestQuotaPoints(t *testing.T) {
	const quotaHour = int(time.Hour / quotasEvery)
	p, start := newQuotaPoints(), time.Unix(1_800_000_000, 0)
	at := func(n int) time.Time { return start.Add(time.Duration(n) * quotasEvery) }
	for n := range 2 * quotaHour {
		s := ratekeeper.Status{Decisions: []quota.Decision{{ID: "tag:a", Smoothed: float64(n), Cost: 7}}}
		if n >= quotaHour+10 {
			s.Decisions = append(s.Decisions, quota.Decision{ID: "tag:b", Smoothed: 5})
		}
		if n == 0 || n == 2*quotaHour-1 {
			s.Backends = []quota.Backend{{Backend: "x", Load: quota.Load{Queue: 20, Target: 10}}, {Backend: "y"}}
		}
		p.add(s, at(n))
	}
	last := at(2*quotaHour - 1)
	all := p.since(0, last)
	require.Len(t, all.Times, quotaHour)
	assert.Equal(t, at(quotaHour).Unix(), all.Times[0])
	require.Len(t, all.InForce, 2)
	assert.Equal(t, "tag:a", all.InForce[0].Name)
	assert.EqualValues(t, quotaHour, all.InForce[0].Values[0])
	text, err := json.Marshal(all.InForce[1].Values[8:12])
	require.NoError(t, err)
	assert.Equal(t, "[null,null,5,5]", string(text))
	require.Len(t, all.Backends, 1)
	assert.EqualValues(t, 2, all.Backends[0].Values[quotaHour-1], "twice its target")
	after := p.since(at(2*quotaHour-3).Unix(), last)
	assert.Len(t, after.Times, 2)
	assert.Len(t, after.Costs[0].Values, 2)
	assert.Empty(t, p.since(at(2*quotaHour).Unix(), last).Times)
	last = at(2*quotaHour + 9)
	p.add(ratekeeper.Status{Decisions: []quota.Decision{{ID: "tag:a", Smoothed: 3}}}, last)
	values := p.since(0, last).InForce[0].Values
	text, err = json.Marshal(values[len(values)-3:])
	require.NoError(t, err)
	assert.Equal(t, "[719,null,3]", string(text), "what was between is unknown")
	for range quotaHour {
		last = last.Add(quotasEvery)
		p.add(ratekeeper.Status{}, last)
	}
	assert.Empty(t, p.since(0, last).InForce, "ids that are no more are forgotten")
}

// TestQuotaPointsOfTheLastHour: points are forgotten when they are an hour old, also if no others
// come, and when the clock is set back.
func TestQuotaPointsOfTheLastHour(t *testing.T) {
	p, now := newQuotaPoints(), time.Unix(1_800_000_000, 0)
	decided := ratekeeper.Status{Decisions: []quota.Decision{{ID: "tag:a", Smoothed: 3}}}
	p.add(decided, now)
	assert.Len(t, p.since(0, now.Add(59*time.Minute)).Times, 1)
	assert.Empty(t, p.since(0, now.Add(time.Hour)).Times)
	p.add(decided, now)
	p.add(decided, now.Add(-time.Minute))
	all := p.since(0, now.Add(-time.Minute))
	assert.Equal(t, []int64{now.Add(-time.Minute).Unix()}, all.Times)
	assert.Len(t, all.InForce[0].Values, 1)
}

// TestQuotaPointsBound: the points of quotas take less than 1 MiB, however many ids and backends
// with long names come and go.
func TestQuotaPointsBound(t *testing.T) {
	p, now := newQuotaPoints(), time.Unix(1_800_000_000, 0)
	long := strings.Repeat("x", quota.MaxName-10)
	for n := range 800 {
		now = now.Add(quotasEvery)
		var s ratekeeper.Status
		for i := range 300 {
			name := fmt.Sprintf("%s%d", long, i+n/100)
			s.Decisions = append(s.Decisions, quota.Decision{ID: quota.ID("tag:" + name), Smoothed: 1})
			s.Backends = append(s.Backends, quota.Backend{Backend: name, Load: quota.Load{Queue: 1, Target: 1}})
		}
		p.add(s, now)
		require.Less(t, p.bytes(), 1<<20)
	}
	assert.Greater(t, p.bytes(), 3*maxLines*360*4, "an hour of three plots is counted")
}

// TestQuotaPointsOfMany: how many ids have no line is told.
func TestQuotaPointsOfMany(t *testing.T) {
	p, now := newQuotaPoints(), time.Unix(1_800_000_000, 0)
	var many ratekeeper.Status
	for n := range maxLines + 7 {
		many.Decisions = append(many.Decisions, quota.Decision{ID: quota.ID(fmt.Sprintf("tag:%03d", n)), Smoothed: float64(n), Cost: float64(n)})
	}
	p.add(many, now)
	all := p.since(0, now)
	assert.Len(t, all.InForce, maxLines)
	assert.Equal(t, 7, all.More)
	assert.Equal(t, "tag:007", all.InForce[0].Name, "the largest have lines")
	p.add(ratekeeper.Status{}, now.Add(quotasEvery))
	assert.Zero(t, p.since(0, now.Add(quotasEvery)).More)
}
