package cluster_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// TestPoints: a topic has a point each ten seconds of the last hour, and each second since somebody
// has looked at it.
func TestPoints(t *testing.T) {
	st := cluster.NewState()
	second, n := 0, int64(0)
	run := func(seconds int, rate int64, names ...string) {
		for range seconds {
			second++
			n += rate
			var subs []dispatch.SubscriptionStats
			for _, name := range names {
				s := used(orders, name, n)
				s.Backlog = int64(second)
				subs = append(subs, s)
			}
			publish(st, "a", at(float64(second)), subs...)
			st.Tick(at(float64(second)), nil)
		}
	}
	run(7200, 50, "billing")
	p := st.Points(orders, 0, at(7200))
	assert.InDelta(t, 360, len(p.Times), 2)
	require.Len(t, p.Rates, 1)
	for i, at := range p.Times {
		assert.Greater(t, at, start.Unix()+3600)
		if i > 0 {
			assert.EqualValues(t, 10, at-p.Times[i-1])
		}
		assert.EqualValues(t, 50, p.Rates[0].Values[i])
		assert.EqualValues(t, 100, p.Limit[i])
		assert.InDelta(t, at-start.Unix(), p.Backlog[i], 6, "the mean of ten seconds")
	}
	last := p.Times[len(p.Times)-1]
	run(60, 20, "billing", "alerts")
	p = st.Points(orders, last, at(7260))
	require.Len(t, p.Times, 60)
	require.Len(t, p.Rates, 2)
	assert.Equal(t, "alerts", p.Rates[0].Name)
	assert.EqualValues(t, 20, p.Rates[1].Values[59])
	assert.EqualValues(t, 20, p.Rates[0].Values[59])
	all := st.Points(orders, 0, at(7260))
	for i := range all.Times[1:] {
		assert.Greater(t, all.Times[i+1], all.Times[i])
	}
	for _, r := range all.Rates {
		assert.Len(t, r.Values, len(all.Times))
	}
	text, err := json.Marshal(all.Rates[0])
	require.NoError(t, err)
	assert.Contains(t, string(text), `{"name":"alerts","values":[null,null,`)
	assert.Empty(t, st.Points(orders, all.Times[len(all.Times)-1], at(7260)).Times)
	assert.Empty(t, st.Points("kafka://public/default/x", 0, at(7260)).Times)

	run(700, 10, "billing")
	p = st.Points(orders, 0, at(7960))
	assert.EqualValues(t, 10, p.Times[len(p.Times)-1]-p.Times[len(p.Times)-2], "nobody has looked for ten minutes")
	run(7200, 10, "billing")
	assert.Len(t, st.Points(orders, 0, at(15160)).Rates, 1, "who has read nothing for an hour is forgotten")
}

// TestGaps: what was between two Ticks that are far apart is unknown, and only that, however many
// topics there are.
func TestGaps(t *testing.T) {
	for _, topics := range []int{1, 1500} {
		st := cluster.NewState()
		var subs []dispatch.SubscriptionStats
		for i := range topics {
			subs = append(subs, used(fmt.Sprintf("kafka://public/default/t%05d", i), "s", 1))
		}
		publish(st, "a", at(0), subs...)
		for second := 0.0; second < 900; second += 2.5 {
			if second < 300 || second > 400 {
				st.Tick(at(second), nil)
			}
		}
		p := st.Points("kafka://public/default/t00000", 0, at(900))
		unknown := 0
		for i, at := range p.Times {
			if s := at - start.Unix(); p.Limit[i] != 100 {
				unknown++
				assert.InDelta(t, 300, s, 30)
			}
		}
		assert.Greater(t, len(p.Times), 20)
		assert.Equal(t, 1, unknown, "%d topics", topics)
	}
}

// TestPointsOfMany: all topics have a point each minute, the busiest each ten seconds.
func TestPointsOfMany(t *testing.T) {
	st := cluster.NewState()
	const topics = 2000
	name := func(i int) string { return fmt.Sprintf("kafka://public/default/t%05d", i) }
	for second := range 301 {
		if second%10 == 0 {
			var subs []dispatch.SubscriptionStats
			for i := range topics {
				subs = append(subs, used(name(i), "s", int64((topics-i)*second)))
			}
			publish(st, "a", at(float64(second)), subs...)
		}
		st.Tick(at(float64(second)), map[string]bool{name(topics - 1): second >= 200})
	}
	// The first points come when the rates are known.
	for i, want := range map[int]int{0: 30, 499: 30, 500: 5, topics - 1: 5} {
		assert.InDelta(t, want, len(st.Points(name(i), 0, at(300)).Times), 4, "topic %d", i)
	}
}
