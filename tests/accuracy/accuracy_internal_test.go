package accuracy

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAttempt(t *testing.T) {
	for name, c := range map[string]struct{ bad, tries, broken int }{
		"within bounds":        {0, 1, 0},
		"out of them once":     {1, 2, 0},
		"twice":                {2, 3, 0},
		"three times":          {3, 3, 1},
		"as often as it tries": {9, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tries := 0
			results, broken := attempt(t, func(m *M) {
				tries++
				m.AtLeast("rate, % of the limit", 90+float64(tries), 91+float64(c.bad))
				m.AtMost("any second, % of the limit", 105, 111)
			}, 0)
			assert.Equal(t, c.tries, tries)
			assert.Len(t, broken, c.broken)
			require.Len(t, results, 2)
			assert.Equal(t, c.tries, results[0].Tries)
			assert.InDelta(t, 90+float64(tries), results[0].Measured, 0)
			assert.Equal(t, 1, results[1].Tries, "was within its bounds at once")
		})
	}
}

// TestEachFigure: no bound is broken in three tries, though each try breaks one.
func TestEachFigure(t *testing.T) {
	tries := 0
	results, broken := attempt(t, func(m *M) {
		tries++
		m.AtMost("a", []float64{9, 1, 2}[tries-1], 5)
		m.AtMost("b", []float64{3, 9, 9}[tries-1], 5)
		m.AtMost("c", []float64{9, 9, 4}[tries-1], 5)
	}, 0)
	assert.Empty(t, broken)
	assert.Equal(t, []Result{
		{Figure: "a", Measured: 1, Max: new(5.0), Tries: 2},
		{Figure: "b", Measured: 3, Max: new(5.0), Tries: 1},
		{Figure: "c", Measured: 4, Max: new(5.0), Tries: 3},
	}, results)
}

func TestBounds(t *testing.T) {
	m := &M{T: t}
	m.AtLeast("a", 1, 1)
	m.AtLeast("b", 0.99, 1)
	m.AtMost("c", 1.01, 1)
	m.AtMost("d", 1000, 1234.5)
	m.Within("e", 12.49, 12.48, 12.51)
	m.Within("f", 12.52, 12.48, 12.51)
	var holds []bool
	var bounds []string
	for _, r := range m.results {
		holds = append(holds, r.Holds())
		bounds = append(bounds, r.Bound())
	}
	assert.Equal(t, []bool{true, false, false, true, true, false}, holds)
	assert.Equal(t, []string{"at least 1", "at least 1", "at most 1", "at most 1234",
		"12.48 to 12.51", "12.48 to 12.51"}, bounds)
}

func TestResults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results")
	t.Setenv(Results, file)
	t.Run("b", func(t *testing.T) {
		Measure(t, func(m *M) { m.AtLeast("messages", 3, 2) })
	})
	t.Run("a", func(t *testing.T) {
		Measure(t, func(m *M) {
			m.AtMost("ms", 3, 4)
			m.Within("of a second", 0.5, 0, 1)
		})
	})
	all, err := Read(file)
	require.NoError(t, err)
	require.Len(t, all, 3)
	assert.Equal(t, Result{Package: "tests/accuracy", Test: "TestResults/a", Figure: "ms",
		Measured: 3, Max: new(4.0), Tries: 1}, all[0])
	assert.Equal(t, "of a second", all[1].Figure)
	assert.Equal(t, "TestResults/b", all[2].Test)
}

func TestOnlyOnDemand(t *testing.T) {
	t.Setenv(Results, "")
	t.Run("measures", func(t *testing.T) {
		Measure(t, func(*M) { t.Error("measured without being asked to") })
	})
}
