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

var terms = pool.Terms{Names: []string{"a", "b"}, Permits: 100, Period: 1, Keep: 0.2, Ahead: 0.1, TTL: 4}

func TestDivision(t *testing.T) {
	var d pool.Division
	visit := func(at float64, group, member string, want int64) int64 {
		t.Helper()
		var got pool.Drawn
		d, got = d.Visit(terms, pool.Visit{Group: group, Member: member, Want: want}, 1000+at)
		return got.N
	}
	assert.Equal(t, int64(9), visit(0, "a", "1", 1000),
		"a tenth is open: all of the own, and of b's, which has no members, what is not kept back")
	assert.Equal(t, int64(1), visit(0, "b", "2", 1000), "what was kept back")
	assert.Equal(t, int64(36), visit(0.5, "b", "2", 1000),
		"20 have opened in 0.4 s, one of those before is left, and of a's as many, but for the 6 kept back")
	assert.Equal(t, int64(6), visit(0.5, "a", "1", 1000))
	assert.Equal(t, int64(32), visit(0.999, "b", "2", 20)+visit(0.999, "a", "1", 20),
		"15 each have not expired, and one")
	assert.Equal(t, int64(0), visit(0.999, "a", "1", 1000))
	assert.Equal(t, int64(5), visit(1, "a", "1", 1000),
		"the next period; b has just asked, and what it has is not left over")

	assert.Equal(t, int64(9), visit(1.99, "b", "2", 9))
	assert.Equal(t, int64(15), visit(4.2, "a", "1", 1000), "no permits of b are stolen, which is silent")
	assert.Equal(t, int64(21), visit(4.9, "a", "1", 1000))
	d, _ = d.Visit(terms, pool.Visit{Group: "b", Member: "2", Leave: true}, 1004.9)
	assert.Positive(t, visit(4.9, "a", "1", 1000), "b is empty now")

	_, got := d.Visit(terms, pool.Visit{Group: "x", Member: "3", Want: 1}, 1005)
	assert.False(t, got.Known)
	assert.Zero(t, got.N)
}

// TestRestlessTerms: however often the terms change, no more permits open in a period than the
// larger ones have.
func TestRestlessTerms(t *testing.T) {
	var d pool.Division
	got := int64(0)
	for i := range 997 {
		terms := terms
		terms.Names, terms.Permits = []string{"a"}, 100+int64(i%2)
		var drawn pool.Drawn
		d, drawn = d.Visit(terms, pool.Visit{Group: "a", Member: "1", Want: 1000}, 1000+float64(i)/1000)
		got += drawn.N
	}
	assert.InDelta(t, 101, got, 1)
}

// TestDivisionLaws: whatever members visit, give back or are silent, and whatever clock and terms,
// no period has more spent than its permits, and together with what a cut-off group goes on with,
// no more than that either.
func TestDivisionLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		terms := terms
		terms.Permits = rapid.Int64Range(0, 300).Draw(t, "permits")
		terms.Keep = rapid.SampledFrom([]float64{0, 0.2, 1}).Draw(t, "keep")
		terms.Names = []string{"a", "b", "c"}
		var d pool.Division
		now, spent, period := 1e6, int64(0), int64(0)
		drawn := map[string]pool.Drawn{}
		for range rapid.IntRange(1, 80).Draw(t, "visits") {
			now += rapid.SampledFrom([]float64{0, 0, 0.01, 0.1, 0.3, -0.2}).Draw(t, "later")
			v := pool.Visit{
				Group: rapid.SampledFrom(terms.Names).Draw(t, "group"), Want: rapid.Int64Range(0, 200).Draw(t, "want"),
			}
			v.Member = v.Group + fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "member"))
			last := drawn[v.Member]
			v.Back, v.Period = rapid.Int64Range(0, last.N).Draw(t, "back"), last.Period
			b, err := json.Marshal(d)
			require.NoError(t, err)
			var got pool.Drawn
			after, got := d.Visit(terms, v, now)
			if again, _ := json.Marshal(d); string(again) != string(b) {
				t.Fatal("a visit changed its argument")
			}
			require.NoError(t, json.Unmarshal(b, &d))
			d = after
			if got.Period != period {
				period, spent = got.Period, 0
			}
			if v.Period == got.Period {
				spent -= v.Back
			}
			drawn[v.Member] = got
			if spent += got.N; spent > terms.Permits || got.N > v.Want || got.N < 0 || got.Own > got.N {
				t.Fatalf("%+v: %d spent of %d", got, spent, terms.Permits)
			}
			if v.Want > 0 && got.N == 0 && !(got.Again > 0 && got.Again <= 1) {
				t.Fatalf("retry in %v", got.Again)
			}
		}
	})
}

// A network partition: no permits are stolen from b, whose members are silent, so that they may
// continue with their own.
func ExampleDivision_Visit() {
	t := pool.Terms{Names: []string{"a", "b"}, Permits: 100, Period: 1, Ahead: 0.1, TTL: 4}
	d, got := pool.Division{}.Visit(t, pool.Visit{Group: "b", Member: "its only one", Want: 5}, 1000)
	fmt.Println("b:", got.N)
	_, got = d.Visit(t, pool.Visit{Group: "a", Member: "one", Want: 100}, 1000.95)
	fmt.Println("a, with b there:", got.N)
	_, got = d.Visit(t, pool.Visit{Group: "a", Member: "one", Want: 100}, 1003.95)
	fmt.Println("a, with b silent:", got.N)
	// Output:
	// b: 5
	// a, with b there: 36
	// a, with b silent: 18
}

// TestDivisionAgain: a member that finds nothing comes again after some permits have opened, and at
// the end of a period when it ends, so that not all are late in the next.
func TestDivisionAgain(t *testing.T) {
	var d pool.Division
	d, _ = d.Visit(terms, pool.Visit{Group: "a", Member: "1"}, 1000)
	for _, c := range []struct{ at, again float64 }{
		{0.5, 0.1}, {0.85, 0.1}, {0.95, 0.05}, {0.999, 0.02}, {1.5, 0.1}, {1.95, 0.05},
	} {
		visit := pool.Visit{Group: "a", Member: "1", Want: 1000}
		d, _ = d.Visit(terms, visit, 1000+c.at)
		_, got := d.Visit(terms, visit, 1000+c.at)
		assert.Zero(t, got.N)
		assert.InDelta(t, c.again, got.Again, 1e-9, "at %v", c.at)
	}
}

// TestDivisionClock: a division's clock goes on as the store's does, and stands still while that
// steps back.
func TestDivisionClock(t *testing.T) {
	terms := pool.Terms{Names: []string{"eu"}, Permits: 10, Period: 1, TTL: 5}
	var d pool.Division
	for _, c := range []struct{ now, clock float64 }{
		{100, 0}, {103, 3}, {90, 3}, {91, 4}, {200, 113}, {200, 113},
	} {
		d, _ = d.Visit(terms, pool.Visit{Group: "eu", Member: "a"}, c.now)
		assert.InDelta(t, c.clock, d.Clock, 1e-9, "%v", c.now)
	}
}
