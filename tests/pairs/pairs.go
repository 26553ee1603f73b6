// Package pairs compares two ways to do the same work on a machine that is busy with other work
// too: it runs them in pairs, and reports the median of the pairs' ratios with its interval.
package pairs

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// A Cost is what one run took.
type Cost struct {
	Messages int
	Wall     time.Duration
	CPU      time.Duration // user and system, of the process that is measured
}

// Measure runs f, which handles messages in this process.
func Measure(b *testing.B, messages int, f func()) Cost {
	b.Helper()
	runtime.GC() // else the run would pay for the garbage of the one before
	cpu, start := cpuTime(b), time.Now()
	f()
	return Cost{messages, time.Since(start), cpuTime(b) - cpu}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Report runs n pairs, after one that it does not count, and reports our speed and CPU time for
// each message, relative to the bare client's in the same pair. The order within a pair alternates.
// A metric that ends in -low or -high is a bound of the median's 95 % interval.
func Report(b *testing.B, n int, bare, ours func() Cost) {
	b.Helper()
	bare()
	ours()
	var rates, costs, speed, cpu []float64
	for i := range n {
		var x, y Cost
		if i%2 == 0 {
			x, y = bare(), ours()
		} else {
			y, x = ours(), bare()
		}
		rates, costs = append(rates, y.rate()), append(costs, 1e9*y.cpu())
		speed, cpu = append(speed, y.rate()/x.rate()), append(cpu, y.cpu()/x.cpu())
	}
	b.ReportMetric(0, "ns/op") // not shown
	_, rate, _ := median(rates)
	_, cost, _ := median(costs)
	b.ReportMetric(rate, "messages/s")
	b.ReportMetric(cost, "ns-cpu/message")
	report(b, "x-bare-speed", speed)
	report(b, "x-bare-cpu", cpu)
}

func (c Cost) rate() float64 { return float64(c.Messages) / c.Wall.Seconds() }

// cpu is in seconds for each message.
func (c Cost) cpu() float64 { return c.CPU.Seconds() / float64(c.Messages) }

func report(b *testing.B, unit string, ratios []float64) {
	b.Helper()
	low, middle, high := median(ratios)
	b.ReportMetric(low, unit+"-low")
	b.ReportMetric(middle, unit)
	b.ReportMetric(high, unit+"-high")
}

// median returns the median of samples, and its interval: two of the samples, between which the
// median of what they are drawn from is with a probability of 95 % or more, whatever they are drawn
// from. With fewer than six samples it is between the least and the greatest.
func median(samples []float64) (low, middle, high float64) {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	// The number of samples under the true median is binomial: n tosses of a coin.
	toss := 1.0 // the probability of k heads
	for range n {
		toss /= 2
	}
	tail, k := toss, 0
	for tail < 0.025 {
		toss *= float64(n-k) / float64(k+1)
		tail += toss
		k++
	}
	k = max(0, k-1)
	return s[k], (s[(n-1)/2] + s[n/2]) / 2, s[n-1-k]
}
