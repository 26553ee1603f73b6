package pool

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// opened returns buckets of permits in equal shares.
func opened(permits int64, names ...string) (buckets []bucket) {
	for i, name := range names {
		n := share(permits, len(names), i, 0)
		buckets = append(buckets, bucket{name, n, n})
	}
	return buckets
}

// take draws from the buckets, and returns how much.
func take(buckets []bucket, keep float64, group string, want int64) (n int64) {
	for i, taken := range draw(buckets, keep, group, want) {
		buckets[i].left -= taken
		n += taken
	}
	return n
}

// TestDrawV17 is 120 permits over four groups, of which one wants 200.
func TestDrawV17(t *testing.T) {
	for keep, want := range map[float64]int64{1: 30, 0: 120, 0.2: 102} {
		assert.Equal(t, want, take(opened(120, "a", "b", "c", "d"), keep, "a", 200), "keep-back %v", keep)
	}
}

func TestDraw(t *testing.T) {
	type step struct {
		group      string
		want, gets int64
	}
	for name, c := range map[string]struct {
		keep  float64
		steps []step
	}{
		"own first":                    {0, []step{{"a", 20, 20}, {"b", 30, 30}, {"a", 120, 70}, {"c", 1, 0}}},
		"one after the other":          {0, []step{{"a", 50, 50}, {"b", 50, 50}, {"a", 50, 20}, {"b", 50, 0}}},
		"the keep-back is the owner's": {0.5, []step{{"a", 500, 75}, {"b", 500, 15}, {"c", 10, 10}, {"d", 500, 15}}},
		"after a theft":                {0.2, []step{{"a", 200, 102}, {"b", 200, 6}}},
		"no such group, nothing asked": {0, []step{{"x", 5, 0}, {"a", -1, 0}, {"b", 0, 0}}},
	} {
		buckets := opened(120, "a", "b", "c", "d")
		for i, s := range c.steps {
			assert.Equal(t, s.gets, take(buckets, c.keep, s.group, s.want), "%s, step %d", name, i)
		}
	}
}

// TestDrawLaws: in any order of draws no more is taken than was opened; no group gets more than
// it wants, a group gets all that others leave beyond the keep-back, and none loses more than its
// share without the keep-back.
func TestDrawLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(1, 5).Draw(t, "groups")]
		permits := rapid.Int64Range(0, 500).Draw(t, "permits")
		keep := rapid.SampledFrom([]float64{0, 0.2, 0.5, 1}).Draw(t, "keep")
		buckets := opened(permits, names...)
		all := buckets[0].share
		for _, b := range buckets[1:] {
			all += int64((1-keep)*float64(b.share) + 1e-9)
		}
		if got := take(opened(permits, names...), keep, "a", 1000); got != all {
			t.Fatalf("a alone has %d of %d", got, all)
		}
		own := map[string]int64{} // drawn by the owners from their own
		spent := int64(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			group := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "group")
			want := rapid.Int64Range(0, 200).Draw(t, "want")
			before := slices.Clone(buckets)
			n := take(buckets, keep, group, want)
			if n < 0 || n > want {
				t.Fatalf("%d of %d wanted", n, want)
			}
			spent += n
			for i, b := range buckets {
				if b.left < 0 || b.left > before[i].left {
					t.Fatalf("%+v after %+v", b, before[i])
				}
				if b.name == group {
					own[group] += before[i].left - b.left
				}
			}
		}
		left := int64(0)
		for _, b := range buckets {
			left += b.left
			if loss := float64(b.share - b.left - own[b.name]); loss > (1-keep)*float64(b.share)+1e-6 {
				t.Fatalf("%s lost %v of %d", b.name, loss, b.share)
			}
		}
		if spent+left != permits {
			t.Fatalf("%d spent and %d left of %d", spent, left, permits)
		}
	})
}
