// Package bench measures this project beside other limiters: the same loop, on one machine, in one
// run. make bench writes the results to docs/benchmarks.md.
package bench

import (
	"runtime"
	"testing"
)

// A peer is a limiter to measure. A field is nil if the limiter has no such operation.
type peer struct {
	name     string
	off      operation // take a permit where nothing is limited
	admit    operation // take a permit that is available; it would wait for one
	batch    operation // take 64 permits
	deny     operation // be refused, without waiting
	giveBack operation // take a permit, and give it back unused
}

// An operation makes a limiter, and returns a function that does the operation n times. The loop is
// in that function, so that no call stands between the loop and what it measures.
type operation func(testing.TB) func(n int)

// peers is a function, as each peer is: the compiler does not inline calls within functions that
// the initialization of a package makes, and the limiters' own calls are to be inlined.
func peers() []peer {
	return []peer{
		{"empty-loop", nothing, nothing, nothing, nothing, nothing},
		throttle(), xTime(), xTimeReserve(), failsafe(), uber(), throttled(), ulule(),
	}
}

// nothing is the loop itself, which is part of every figure.
func nothing(testing.TB) func(int) {
	return func(n int) {
		for range n {
		}
	}
}

// block is the number of operations between two reads of the clock.
const block = 100

func BenchmarkOff(b *testing.B)    { each(b, func(p peer) operation { return p.off }, loop) }
func BenchmarkAdmit(b *testing.B)  { each(b, func(p peer) operation { return p.admit }, loop) }
func BenchmarkDeny(b *testing.B)   { each(b, func(p peer) operation { return p.deny }, loop) }
func BenchmarkReturn(b *testing.B) { each(b, func(p peer) operation { return p.giveBack }, loop) }

// BenchmarkAdmit64 has 64 goroutines take permits of one limit. Its time is that of the wall clock,
// divided by the permits of all goroutines.
func BenchmarkAdmit64(b *testing.B) {
	each(b, func(p peer) operation { return p.admit }, func(b *testing.B, op func(int)) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		b.SetParallelism(64 / min(64, runtime.GOMAXPROCS(0)))
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				op(block)
			}
		})
		runtime.ReadMemStats(&after)
		b.ReportMetric(perOp(b, block), "ns/op")
		b.ReportMetric(float64((after.Mallocs-before.Mallocs)/uint64(b.N*block)), "allocs/permit")
	})
}

// BenchmarkBatch64 takes 64 permits at a time; ns/permit is a 64th of its time.
func BenchmarkBatch64(b *testing.B) {
	each(b, func(p peer) operation { return p.batch }, func(b *testing.B, op func(int)) {
		for b.Loop() {
			op(block)
		}
		b.ReportMetric(0, "ns/op") // not shown
		b.ReportMetric(perOp(b, block)/64, "ns/permit")
	})
}

func each(b *testing.B, operationOf func(peer) operation, run func(*testing.B, func(int))) {
	for _, p := range peers() {
		if makeOp := operationOf(p); makeOp != nil {
			b.Run(p.name, func(b *testing.B) {
				run(b, makeOp(b))
			})
		}
	}
}

func loop(b *testing.B, op func(int)) { loopBlocks(b, op, block) }

func loopBlocks(b *testing.B, op func(int), block int) {
	allocs := testing.AllocsPerRun(10, func() { op(block) }) / float64(block)
	for b.Loop() {
		op(block)
	}
	b.ReportMetric(perOp(b, block), "ns/op")
	b.ReportMetric(allocs, "allocs/permit")
}

func perOp(b *testing.B, block int) float64 {
	return float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(block)
}

// TestPeers does every operation twice. An operation panics if its answer is wrong, so that a peer
// that refuses what it should admit does not count as a fast one.
func TestPeers(t *testing.T) {
	for _, p := range peers() {
		for _, makeOp := range []operation{p.off, p.admit, p.batch, p.deny, p.giveBack} {
			if makeOp != nil {
				makeOp(t)(2)
			}
		}
	}
}

// check panics if an operation did not have the outcome to measure.
func check(ok bool) {
	if !ok {
		panic("bench: not the outcome to measure")
	}
}
