// Package accuracy is the suite that measures, in real time, how exactly limits hold. make accuracy
// runs each TestAccuracy of the repository; make test checks what holds at any speed.
package accuracy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// Results is the environment variable with the name of the file to which results are added, one in
// a line of JSON. Without it, Measure skips the test.
const Results = "THROTTLE_ACCURACY"

const (
	tries = 3
	pause = 2 * time.Second // before another try: what disturbed the last one may be over
)

// A Result is a figure that a test has measured.
type Result struct {
	Package, Test string
	Figure        string // with its unit
	Measured      float64
	Min, Max      *float64 `json:",omitempty"` // bounds; nil: none
	Tries         int
}

// Holds reports whether the figure is within its bounds.
func (r Result) Holds() bool {
	return (r.Min == nil || r.Measured >= *r.Min) && (r.Max == nil || r.Measured <= *r.Max)
}

// Bound describes the bounds.
func (r Result) Bound() string {
	switch {
	case r.Min == nil:
		return "at most " + Number(*r.Max)
	case r.Max == nil:
		return "at least " + Number(*r.Min)
	}
	return Number(*r.Min) + " to " + Number(*r.Max)
}

// Number formats a figure with four significant digits.
func Number(x float64) string {
	if x >= 1000 || x <= -1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.4g", x)
}

// M is one try of a measurement. The methods that record figures are for the test's goroutine.
type M struct {
	*testing.T
	results []Result
}

// AtLeast records a figure with a lower bound.
func (m *M) AtLeast(figure string, measured, bound float64) {
	m.add(Result{Figure: figure, Measured: measured, Min: &bound})
}

// AtMost records a figure with an upper bound.
func (m *M) AtMost(figure string, measured, bound float64) {
	m.add(Result{Figure: figure, Measured: measured, Max: &bound})
}

// Within records a figure with two bounds.
func (m *M) Within(figure string, measured, low, high float64) {
	m.add(Result{Figure: figure, Measured: measured, Min: &low, Max: &high})
}

func (m *M) add(r Result) {
	m.Helper()
	if index(m.results, r) >= 0 {
		m.Errorf("%s: recorded twice in one try", r.Figure)
	}
	m.results = append(m.results, r)
}

// index returns the place of r's figure in results, or -1.
func index(results []Result, r Result) int {
	return slices.IndexFunc(results, func(have Result) bool { return have.Figure == r.Figure })
}

// Measure calls measure until each figure that it records has been within its bounds once, at most
// three times. It adds each figure to the results as it was within its bounds first, or else in the
// last call; then the test fails.
func Measure(t *testing.T, measure func(m *M)) {
	t.Helper()
	file := os.Getenv(Results)
	if file == "" {
		t.Skip("measures in real time: make accuracy")
	}
	results, broken := attempt(t, measure, pause)
	for i := range results {
		results[i].Package, results[i].Test = packagePath(), t.Name()
	}
	if err := write(file, results); err != nil {
		t.Error(err)
	}
	for _, r := range broken {
		t.Errorf("%s: %s, want %s", r.Figure, Number(r.Measured), r.Bound())
	}
}

// attempt returns the first result of each figure that is within its bounds, or else the last one;
// these are the broken ones.
func attempt(t *testing.T, measure func(m *M), pause time.Duration) (results, broken []Result) {
	for try := 1; ; try++ {
		m := &M{T: t}
		measure(m)
		for _, r := range m.results {
			r.Tries = try
			if i := index(results, r); i < 0 {
				results = append(results, r)
			} else if !results[i].Holds() {
				results[i] = r
			}
		}
		broken = slices.DeleteFunc(slices.Clone(results), Result.Holds)
		if len(broken) == 0 || try == tries || t.Failed() {
			return results, broken
		}
		for _, r := range broken {
			t.Logf("measuring again: %s: %s, want %s", r.Figure, Number(r.Measured), r.Bound())
		}
		time.Sleep(pause)
	}
}

// packagePath returns the path of the package under test, without that of the module; "." is the
// module's own package.
func packagePath() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	path := strings.TrimSuffix(info.Path, ".test")
	return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(path, info.Main.Path), "/"), ".")
}

// write adds results to a file, each with a write of its own: tests of several packages may do so
// at once.
func write(file string, results []Result) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, r := range results {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if _, err := f.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// Read returns the results in a file, in the order of their tests.
func Read(file string) ([]Result, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Result
	for d := json.NewDecoder(f); d.More(); {
		var r Result
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Test, b.Test))
	})
	return all, nil
}
