package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
)

func patternSet(t testing.TB, patterns ...string) *policy.Set {
	t.Helper()
	var entries []policy.Entry
	for _, p := range patterns {
		scope, err := policy.ParseScope("pattern:" + p)
		require.NoError(t, err)
		entries = append(entries, policy.Entry{Scope: scope})
	}
	set, err := policy.NewSet(entries)
	require.NoError(t, err)
	return set
}

// TestCostOfAPattern: a pattern that costs too much cannot be set, and the error names the limit.
// One that has been stored stays in force, unless it costs so much that it is not read at all.
func TestCostOfAPattern(t *testing.T) {
	for pattern, want := range map[string]string{
		`(?:.*\w){200}#`: "costs 603 steps for each character of a topic: want at most 500",
		`[a-z]{1000}`:    "costs 1002 steps",
	} {
		set := patternSet(t, pattern)
		require.ErrorContains(t, set.CheckPatterns(patternSet(t, "a")), want, pattern)
		require.NoError(t, set.CheckPatterns(patternSet(t, pattern)))
	}
	for pattern, want := range map[string]string{
		`(?:[ab]c?){1000}(?:[ab]c?){1000}(?:[ab]c?){1000}(?:[ab]c?){1000}`: "costs 12002 steps",
		`(a`:                      "invalid regular expression: want RE2's syntax",
		strings.Repeat("a", 1025): "too long: want at most 1024 bytes",
	} {
		_, err := policy.ParseScope("pattern:" + pattern)
		require.ErrorContains(t, err, want, pattern)
		_, err = policy.NewSet([]policy.Entry{{Scope: policy.PatternScope(pattern)}})
		require.ErrorContains(t, err, want, "%s in a set", pattern)
	}
	for _, pattern := range []string{
		"^kafka://public/default/" + strings.Repeat("a", 900), `^kafka://.*-dlq$`, `(?:.*\w){160}#`,
	} {
		_, err := policy.ParseScope("pattern:" + pattern)
		require.NoError(t, err, pattern)
	}
}

// TestCostOfAllPatterns: there are bounds for all patterns together, too.
func TestCostOfAllPatterns(t *testing.T) {
	none := patternSet(t)
	var cheap, costly []string
	for i := range 1001 {
		cheap = append(cheap, fmt.Sprintf("^kafka://public/default/orders-%d-", i))
	}
	for i := range 21 {
		costly = append(costly, fmt.Sprintf("x{490}%d", i))
	}
	require.NoError(t, patternSet(t, cheap[:1000]...).CheckPatterns(none))
	many := patternSet(t, cheap...)
	require.ErrorContains(t, many.CheckPatterns(none), "1001 patterns: want at most 1000")
	require.NoError(t, many.CheckPatterns(many), "no worse than before")
	require.NoError(t, patternSet(t, costly[:20]...).CheckPatterns(none))
	require.ErrorContains(t, patternSet(t, costly...).CheckPatterns(none),
		"all patterns together cost 10364 steps for each character of a topic: want at most 10000")
}

// TestAccuracyWorstPatterns: the most expensive patterns that are accepted take 60 ms to match the
// longest topic, and 14 ms to match one of 208 characters. The machine may be several times slower.
func TestAccuracyWorstPatterns(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		var worst []string
		for i := range 20 {
			worst = append(worst, fmt.Sprintf(`(?:.*\w){160}#%d`, i%10)+strings.Repeat("#", i/10))
		}
		set := patternSet(m, worst...)
		require.NoError(m, set.CheckPatterns(patternSet(m)))
		for length, most := range map[int]float64{180: 50, 1024: 1000} {
			topic, err := policy.ParseTopic("persistent://public/default/" + strings.Repeat("a", length))
			require.NoError(m, err)
			fastest := time.Hour
			for range 5 {
				start := time.Now()
				set.Match(topic)
				fastest = min(fastest, time.Since(start))
			}
			m.AtMost(fmt.Sprintf("match a topic of %d characters, ms", length), fastest.Seconds()*1000, most)
		}
	})
}
