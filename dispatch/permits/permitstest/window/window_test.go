package window_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
)

func TestMax(t *testing.T) {
	const s = time.Second
	events := []window.Event{
		{At: 0, N: 5}, {At: s / 2, N: 1}, {At: s - 1, N: 2}, {At: s, N: 4}, {At: 3 * s, N: 7},
	}
	for d, want := range map[time.Duration]int{1: 7, s / 2: 7, s: 8, s + 1: 12, 2 * s: 12, 4 * s: 19} {
		assert.Equal(t, want, window.Max(d, events), "%v", d)
	}
	assert.Zero(t, window.Max(s, nil))
	now := time.Now()
	assert.Equal(t, 2, window.Max(s, window.Times([]time.Time{now, now.Add(s - 1), now.Add(s)})))
}

func TestWithinRate(t *testing.T) {
	const s = time.Second
	events := []window.Event{{At: s / 10, N: 2}, {At: s, N: 9}, {At: 3 * s, N: 5}}
	assert.NoError(t, window.WithinRate(10, s/10, 0, events))
	assert.NoError(t, window.WithinRate(8, 0, 3, events))
	assert.ErrorContains(t, window.WithinRate(10, 0, 0, events), "2 100ms after the start: want at most 1.0 of 10/s")
	assert.ErrorContains(t, window.WithinRate(8, s/10, 1, events), "11 1s after the start")
	assert.NoError(t, window.WithinRate(1, 0, 0, nil))
}

func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := window.NewRecord()
		for i := range 6 {
			r.Add(i%2, 10+i) // at 0 s, 1 s, 2 s, ...
			time.Sleep(time.Second)
		}
		assert.Equal(t, 11+12+13, r.Between(time.Second, 4*time.Second))
		assert.Equal(t, 11+13, r.By(1, 0, 4*time.Second))
		assert.Equal(t, 14+15, r.Max(2*time.Second, 0))
		assert.Equal(t, 15, r.Max(2*time.Second, 4500*time.Millisecond))
		assert.Equal(t, window.Event{At: 3 * time.Second, N: 13, Source: 1}, r.Events()[3])
	})
}

// TestMaxIsThatOfAllIntervals compares Max with counting the events of each interval.
func TestMaxIsThatOfAllIntervals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.SliceOfN(rapid.IntRange(0, 30), 0, 20).Draw(t, "at")
		slices.Sort(at)
		d := time.Duration(rapid.IntRange(1, 40).Draw(t, "d"))
		var events []window.Event
		for i, at := range at {
			events = append(events, window.Event{At: time.Duration(at), N: i % 4})
		}
		highest := 0
		for end := range time.Duration(31) {
			sum := 0
			for _, e := range events {
				if e.At > end-d && e.At <= end {
					sum += e.N
				}
			}
			highest = max(highest, sum)
		}
		assert.Equal(t, highest, window.Max(d, events))
	})
}
