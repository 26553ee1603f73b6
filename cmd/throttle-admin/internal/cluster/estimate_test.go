package cluster_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// TestDrainedIn: when a backlog will be gone is known after ten seconds in which it has shrunk.
func TestDrainedIn(t *testing.T) {
	st := cluster.NewState()
	report := func(second int, backlog int64) cluster.Number {
		s := used(orders, "billing", 1)
		s.Backlog, s.BehindSince = backlog, 1
		publish(st, "a", at(float64(second)), s)
		return rows(st, at(float64(second)))[0].DrainedIn
	}
	second := 0
	for ; second < 10; second++ {
		assert.False(t, report(second, int64(1000-10*second)).Known(), "too little has been seen")
	}
	for ; second < 60; second++ {
		assert.InDelta(t, float64(1000-10*second)/10, float64(report(second, int64(1000-10*second))), 1e-6)
	}
	before := float64(report(second, 400))
	second++
	assert.InDelta(t, before, float64(report(second, 440)), before/5, "one value that is odd does not make it jump")
	assert.False(t, report(second+1, -1).Known())
	assert.False(t, report(second+2, 5).Known(), "it begins again")
	for n := range 20 {
		assert.False(t, report(second+3+n, int64(10+n)).Known(), "it grows")
	}

	// A weak slope in much noise is none, and a clear one does not jump.
	st = cluster.NewState()
	random := rand.New(rand.NewPCG(1, 2))
	second = 0
	known := 0
	for ; second < 60; second++ {
		if report(second, 1_000_000-int64(second)+int64(random.IntN(2000))).Known() {
			known++
		}
	}
	assert.Less(t, known, 10, "a slope that may be noise")
	st = cluster.NewState()
	for second = range 60 {
		if in := report(second, 100_000-int64(100*second)+int64(random.IntN(200))); second >= 30 {
			assert.InDelta(t, 1000-second, float64(in), 150)
		}
	}

	// A topic is drained when its last subscription is.
	st = cluster.NewState()
	for second := range 21 {
		a, b, c := used(orders, "a", 1), used(orders, "b", 1), used(orders, "c", 1)
		a.Backlog, a.BehindSince = int64(1000-10*second), 1
		b.Backlog, b.BehindSince = int64(1000-20*second), 1
		c.Backlog = int64(100 + second)
		if second == 20 {
			c.BehindSince = 1
		}
		publish(st, "r", at(float64(second)), a, b, c)
		if row := rows(st, at(float64(second)))[0]; second == 19 {
			assert.InDelta(t, 81, float64(row.DrainedIn), 1e-6)
		} else if second == 20 {
			assert.False(t, row.DrainedIn.Known(), "the backlog of one that is behind grows")
		}
	}
}

// TestWaitP99: waits of the last minute, of all replicas.
func TestWaitP99(t *testing.T) {
	st := cluster.NewState()
	counts := [2]dispatch.Histogram{}
	report := func(second float64) float64 {
		for i, name := range []string{"a", "b"} {
			s := used(orders, "billing", 1)
			s.WaitTimes = counts[i]
			publish(st, name, at(second), s)
		}
		return float64(rows(st, at(second))[0].WaitP99)
	}
	counts[0].Buckets[9] = 1000 // before this view began
	counts[0].Count = 1000
	assert.True(t, math.IsNaN(report(0)), "that is known from the next record on")
	counts[0].Buckets[1] += 99
	counts[0].Count += 99
	assert.Equal(t, 0.003, report(1))
	counts[1].Buckets[5] += 2
	counts[1].Count += 2
	assert.Equal(t, 0.3, report(2))
	assert.Equal(t, 0.3, report(50))
	assert.Zero(t, report(75))
	longer := func() bool { return st.Overview(cluster.Query{Size: 1}, at(0)).Rows[0].WaitLonger }
	last := len(dispatch.WaitBuckets)
	counts[1].Buckets[last-1] += 99
	counts[1].Buckets[last]++
	counts[1].Count += 100
	assert.EqualValues(t, 60, report(76))
	assert.False(t, longer())
	counts[0].Buckets[last]++
	counts[0].Count++
	assert.EqualValues(t, 60, report(77))
	assert.True(t, longer(), "two of 101 are longer")
}
