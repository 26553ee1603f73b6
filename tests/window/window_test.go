package window_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/tests/window"
)

func TestMax(t *testing.T) {
	const s = time.Second
	events := []window.Event{{0, 5}, {s / 2, 1}, {s - 1, 2}, {s, 4}, {3 * s, 7}}
	for d, want := range map[time.Duration]int{1: 7, s / 2: 7, s: 8, s + 1: 12, 2 * s: 12, 4 * s: 19} {
		assert.Equal(t, want, window.Max(d, events), "%v", d)
	}
	assert.Zero(t, window.Max(s, nil))
	now := time.Now()
	assert.Equal(t, 2, window.Max(s, window.Times([]time.Time{now, now.Add(s - 1), now.Add(s)})))
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
		most := 0
		for end := range time.Duration(31) {
			sum := 0
			for _, e := range events {
				if e.At > end-d && e.At <= end {
					sum += e.N
				}
			}
			most = max(most, sum)
		}
		assert.Equal(t, most, window.Max(d, events))
	})
}
