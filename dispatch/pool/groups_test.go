package pool_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
)

// TestDrawV17 is 120 permits over four groups, of which one wants 200.
func TestDrawV17(t *testing.T) {
	for keep, want := range map[float64]int64{1: 30, 0: 120, 0.2: 102} {
		_, got := pool.Fill(1, 120, keep, "a", "b", "c", "d").Draw(pool.Ask{Group: "a", Want: 200})
		assert.Equal(t, []int64{want}, got, "keep-back %v", keep)
	}
}

func TestFill(t *testing.T) {
	g := pool.Fill(7, 11, 2, "c", "a", "b", "a")
	assert.Equal(t, pool.Groups{Period: 7, Keep: 1, Buckets: []pool.Bucket{
		{Name: "a", Share: 4, Left: 4}, {Name: "b", Share: 4, Left: 4}, {Name: "c", Share: 3, Left: 3},
	}}, g)
	assert.Empty(t, pool.Fill(1, 10, 0).Buckets)
	b, err := json.Marshal(g)
	require.NoError(t, err)
	var back pool.Groups
	require.NoError(t, json.Unmarshal(b, &back))
	assert.Equal(t, g, back)
}

func TestDraw(t *testing.T) {
	type asks = []pool.Ask
	for name, c := range map[string]struct {
		keep  float64
		draws []asks
		want  [][]int64
	}{
		"own first, in one call":   {0, []asks{{{"a", 120}, {"b", 30}}}, [][]int64{{90, 30}}},
		"evenly":                   {0, []asks{{{"a", 100}, {"b", 100}}}, [][]int64{{60, 60}}},
		"evenly, up to the need":   {0, []asks{{{"a", 100}, {"b", 40}, {"c", 100}}}, [][]int64{{40, 40, 40}}},
		"the rest of a small need": {0, []asks{{{"a", 100}, {"b", 35}}}, [][]int64{{85, 35}}},
		"odd ones":                 {0, []asks{{{"a", 100}, {"b", 101}, {"c", 40}}, {{"d", 1}}}, [][]int64{{40, 40, 40}, {0}}},
		"twice in one call":        {0, []asks{{{"a", 30}, {"a", 50}, {"a", 60}}}, [][]int64{{30, 45, 45}}},
		"one call after the other": {0, []asks{{{"a", 50}}, {{"b", 50}}, {{"a", 50}}, {{"b", 50}}}, [][]int64{{50}, {50}, {20}, {0}}},
		"the keep-back is the owner's": {0.5, []asks{{{"a", 500}}, {{"b", 500}}, {{"c", 10}}, {{"d", 500}}},
			[][]int64{{75}, {15}, {10}, {15}}},
		"nobody knows it": {0, []asks{{{"x", 5}, {"a", -1}, {"b", 0}}}, [][]int64{{0, 0, 0}}},
	} {
		g := pool.Fill(1, 120, c.keep, "a", "b", "c", "d")
		for i, asks := range c.draws {
			var got []int64
			g, got = g.Draw(asks...)
			assert.Equal(t, c.want[i], got, "%s, call %d", name, i)
		}
	}
}

// TestDrawLaws: in any interleaving, together with any partition, no more is spent than was
// divided; nobody gets more than it wants, what others left beyond the keep-back is not refused to
// a lone thief, and no donor loses more than its share without the keep-back.
func TestDrawLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(1, 5).Draw(t, "groups")]
		permits := rapid.Int64Range(0, 500).Draw(t, "permits")
		keep := rapid.SampledFrom([]float64{0, 0.2, 0.5, 1}).Draw(t, "keep")
		sides := []pool.Groups{pool.Fill(1, permits, keep, names...)}
		start := sides[0]
		own := map[string]int64{} // drawn by the owners from their own
		spent := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(sides) == 1 && rapid.IntRange(0, 9).Draw(t, "partition") == 0 {
				cut := rapid.IntRange(0, len(names)).Draw(t, "cut")
				sides = []pool.Groups{sides[0].Only(names[:cut]...), sides[0].Only(names[cut:]...)}
			}
			side := rapid.IntRange(0, len(sides)-1).Draw(t, "side")
			asks := make([]pool.Ask, rapid.IntRange(1, 4).Draw(t, "asks"))
			for i := range asks {
				asks[i] = pool.Ask{
					Group: rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "group"), Want: rapid.Int64Range(0, 200).Draw(t, "want"),
				}
			}
			before := sides[side]
			after, got := before.Draw(asks...)
			sides[side] = after
			for i, n := range got {
				spent += n
				if n < 0 || n > asks[i].Want {
					t.Fatalf("%d of %d wanted", n, asks[i].Want)
				}
			}
			for i, b := range after.Buckets {
				if b.Left < 0 || b.Left > before.Buckets[i].Left {
					t.Fatalf("%+v after %+v", b, before.Buckets[i])
				}
				wanted := int64(0)
				for _, a := range asks {
					if a.Group == b.Name {
						wanted += a.Want
					}
				}
				own[b.Name] += min(wanted, before.Buckets[i].Left)
			}
		}
		left := int64(0)
		for _, side := range sides {
			for _, b := range side.Buckets {
				left += b.Left
				if loss := float64(b.Share - b.Left - own[b.Name]); loss > (1-keep)*float64(b.Share)+1e-6 {
					t.Fatalf("%s lost %v of %d", b.Name, loss, b.Share)
				}
			}
		}
		if spent+left != permits {
			t.Fatalf("%d spent and %d left of %d", spent, left, permits)
		}
		_, got := start.Draw(pool.Ask{Group: "a", Want: 1000})
		want := start.Buckets[0].Share
		for _, b := range start.Buckets[1:] {
			want += int64((1-keep)*float64(b.Share) + 1e-9)
		}
		if got[0] != want {
			t.Fatalf("a lone thief has %d of %d", got[0], want)
		}
	})
}

// Group a has used up its own 30 permits and takes what b, c and d leave beyond a fifth of theirs.
func ExampleGroups_Draw() {
	g := pool.Fill(1, 120, 0.2, "a", "b", "c", "d")
	g, got := g.Draw(pool.Ask{Group: "a", Want: 200})
	fmt.Println(got)
	_, got = g.Draw(pool.Ask{Group: "b", Want: 200})
	fmt.Println(got)
	// Output:
	// [102]
	// [6]
}

// A side that sees only c and d spends their permits at most.
func ExampleGroups_Only() {
	g := pool.Fill(1, 120, 0, "a", "b", "c", "d")
	_, got := g.Only("c", "d").Draw(pool.Ask{Group: "c", Want: 200})
	fmt.Println(got)
	// Output: [60]
}
