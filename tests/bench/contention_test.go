package bench

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkAdmit64BesideAdd has 64 goroutines take permits of one limit, in turn with 64 goroutines
// that add to one shared counter: inlined, which is the least that a shared limit could cost, and
// in a function that is called, which is the least that a limiter can cost.
func BenchmarkAdmit64BesideAdd(b *testing.B) {
	b.Run("throttle", func(b *testing.B) {
		var c counter
		admit := throttle().admit(b)
		t := inTurn(b, 64, admit, c.add, c.call)
		b.ReportMetric(middle(t[0]), "ns/permit")
		b.ReportMetric(middle(t[1]), "ns/add")
		b.ReportMetric(middle(ratios(t[0], t[1])), "x-add")
		b.ReportMetric(middle(ratios(t[0], t[2])), "x-called-add")
	})
}

// BenchmarkReturnShared has goroutines take a permit of one limit and give it back unused.
func BenchmarkReturnShared(b *testing.B) {
	for _, goroutines := range []int{1, 2, 64} {
		b.Run(fmt.Sprintf("%d/throttle", goroutines), func(b *testing.B) {
			t := inTurn(b, goroutines, throttle().giveBack(b))
			b.ReportMetric(middle(t[0]), "ns/permit")
		})
	}
}

// A counter is alone in its cache line.
type counter struct {
	_ [64]byte
	n atomic.Int64
	_ [64]byte
}

func (c *counter) add(n int) {
	for range n {
		c.n.Add(-1)
	}
}

func (c *counter) call(n int) {
	for range n {
		check(c.take())
	}
}

//go:noinline
func (c *counter) take() bool { return c.n.Add(-1) <= 0 }

const (
	turns    = 21
	turnOps  = 2_000_000 // of all goroutines together
	turnRuns = 5         // at most, until both cores were ours
)

// inTurn measures operations in turn, each by all goroutines at once. It returns the nanoseconds
// of the wall clock for each operation, one value for each turn.
func inTurn(b *testing.B, goroutines int, ops ...func(n int)) [][]float64 {
	b.Helper()
	samples := make([][]float64, len(ops))
	for b.Loop() {
		for range turns {
			for i, op := range ops {
				samples[i] = append(samples[i], turn(goroutines, op))
			}
		}
	}
	b.ReportMetric(0, "ns/op") // not shown
	return samples
}

// turn returns the nanoseconds that an operation takes. Goroutines contend only while each core of
// this process runs one, so turn repeats a run during which other processes had the cores.
func turn(goroutines int, op func(n int)) (ns float64) {
	cores := float64(min(goroutines, runtime.GOMAXPROCS(0)))
	highest := 0.0
	for range turnRuns {
		cpu, start := cpuTime(), time.Now()
		var all sync.WaitGroup
		for range goroutines {
			all.Go(func() { op(turnOps / goroutines) })
		}
		all.Wait()
		wall := time.Since(start)
		if used := (cpuTime() - cpu).Seconds() / wall.Seconds(); used > highest {
			ns, highest = float64(wall.Nanoseconds())/turnOps, used
		}
		if highest > 0.95*cores {
			break
		}
	}
	return ns
}

// ratios divides each sample by the one of the same turn.
func ratios(a, by []float64) []float64 {
	r := slices.Clone(a)
	for i := range r {
		r[i] /= by[i]
	}
	return r
}

// middle is the median.
func middle(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}
