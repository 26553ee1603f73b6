package processes

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// report reports the figures of the d after the first message, most of them in relation to the
// limit.
func report(b *testing.B, r result, rate int64, d time.Duration) {
	first := r.events[0].at
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(100*float64(r.count(-1, first, first+d))/(float64(rate)*d.Seconds()), "%-of-limit")
	b.ReportMetric(100*float64(r.window())/float64(rate), "%-any-second")
	b.ReportMetric(r.requestsPerMessage(), "requests/message")
	b.ReportMetric(percentile(r.lateness, 0.99).Seconds()*1000, "ms-control-p99-late")
}

func BenchmarkSaturated(b *testing.B) {
	redis := services.Redis(b)
	for _, rate := range []int64{1000, 100_000} {
		b.Run(fmt.Sprintf("%d/throttle", rate), func(b *testing.B) {
			for b.Loop() {
				r := run(b, redis, replicas, 10200*time.Millisecond, job{Rate: rate, Max: 1}, nil)
				report(b, r, rate, 10*time.Second)
				lowest, highest := 1.0, 0.0
				for i := range replicas {
					share := float64(r.count(i, 0, time.Hour)) / float64(r.count(-1, 0, time.Hour))
					lowest, highest = min(lowest, share), max(highest, share)
				}
				b.ReportMetric(100*lowest, "%-least-share")
				b.ReportMetric(100*highest, "%-most-share")
			}
		})
	}
}

func BenchmarkAllDemandOnOne(b *testing.B) {
	redis := services.Redis(b)
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			r := run(b, redis, replicas, 10200*time.Millisecond, job{Rate: 1000, Max: 1}, func(i int, j *job) {
				if i > 0 {
					j.Max, j.Poisson = 1, 1e-6 // present, with hardly any demand
				}
			})
			report(b, r, 1000, 10*time.Second)
		}
	})
}

func BenchmarkDemandMoves(b *testing.B) {
	redis := services.Redis(b)
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			var moved time.Time
			r := run(b, redis, 2, 6*time.Second, job{Rate: 1000, Max: 1}, func(i int, j *job) {
				moved = j.Start.Add(3 * time.Second)
				if i == 0 {
					j.End = moved
				} else {
					j.Start = moved
				}
			})
			// The second process's times are relative to the move.
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(100*float64(r.count(1, 150*time.Millisecond, 650*time.Millisecond))/500,
				"%-of-limit-from-150ms-on")
		}
	})
}

func BenchmarkQuietBesideGreedy(b *testing.B) {
	redis := services.Redis(b)
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			r := run(b, redis, 5, 10*time.Second, job{Rate: 1000, Max: 1}, func(i int, j *job) {
				j.Subscription = fmt.Sprint("greedy ", i)
				if i == 0 {
					j.Subscription, j.Poisson = "quiet", 50
				}
			})
			report(b, r, 1000, 9*time.Second)
			b.ReportMetric(percentile(r.waits(0), 0.99).Seconds()*1000, "ms-quiet-wait-p99")
		}
	})
}

// BenchmarkStrict measures strict sharing by the gaps between calls.
func BenchmarkStrict(b *testing.B) {
	redis := services.Redis(b)
	for _, rate := range []int64{5, 100} {
		b.Run(fmt.Sprintf("%d/throttle", rate), func(b *testing.B) {
			for b.Loop() {
				d := 60 * time.Second
				if rate > 5 {
					d = 20 * time.Second
				}
				r := run(b, redis, replicas, d, job{Rate: rate, Max: 1, Sharing: policy.Strict}, nil)
				shortest, n := r.gaps(0, d)
				least := n
				for i := range replicas {
					least = min(least, r.count(i, 0, d))
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(1000*(1/float64(rate)-shortest.Seconds()), "ms-too-near")
				begin := time.Second + time.Second/time.Duration(rate) // a new line starts with this delay
				_, since := r.gaps(begin, d)
				b.ReportMetric(100*float64(since)/(float64(rate)*(d-begin).Seconds()), "%-of-limit")
				b.ReportMetric(100*float64(least*replicas)/float64(n), "%-of-the-mean-the-fewest")
				b.ReportMetric(r.requestsPerMessage(), "requests/message")
				b.ReportMetric(percentile(r.lateness, 0.99).Seconds()*1000, "ms-control-p99-late")
			}
		})
	}
}

// BenchmarkWeights runs three subscriptions of weights 1, 2 and 4 with two processes each.
func BenchmarkWeights(b *testing.B) {
	redis := services.Redis(b)
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			const d = 13 * time.Second
			const from, to = 2 * time.Second, d - time.Second
			weights := map[string]float64{"0": 1, "1": 2, "2": 4}
			base := job{Rate: 1000, Max: 1, Weights: weights}
			r := run(b, redis, 6, d, base, func(i int, j *job) { j.Subscription = fmt.Sprint(i % 3) })
			worst, all := 0.0, r.count(-1, from, to)
			for i, weight := range []float64{1, 2, 4} {
				got := r.count(i, from, to) + r.count(i+3, from, to)
				worst = max(worst, 100*math.Abs(float64(got)*7/weight/float64(all)-1))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(worst, "%-off-its-weight")
		}
	})
}

// BenchmarkReserved runs a subscription with 400/s reserved of 1000/s beside four greedy ones of
// the same weight.
func BenchmarkReserved(b *testing.B) {
	redis := services.Redis(b)
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			const d = 13 * time.Second
			base := job{Rate: 1000, Max: 1, Reserved: map[string]int64{"0": 400}}
			r := run(b, redis, 5, d, base, func(i int, j *job) { j.Subscription = fmt.Sprint(i) })
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(r.count(0, 2*time.Second, d-time.Second))/10, "messages/s-of-520")
		}
	})
}
