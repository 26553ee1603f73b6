package numaflow_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/pairs"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// measured runs a benchmark without a time per operation.
func measured(b *testing.B, run func(b *testing.B)) {
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			run(b)
		}
		b.ReportMetric(0, "ns/op")
	})
}

// first returns the time of the first message at any of the vertices.
func first(b *testing.B, vertices ...*dataplane.Vertex) (at time.Time) {
	b.Helper()
	require.Eventually(b, func() bool {
		for _, v := range vertices {
			if all := v.Arrivals(); len(all) > 0 && (at.IsZero() || all[0].Before(at)) {
				at = all[0]
			}
		}
		return !at.IsZero()
	}, throttletest.Patience, time.Millisecond)
	return at
}

// sources runs replicas of a source for 12 s from the first message on.
func sources(b *testing.B, s *scene, replicas int, batch dataplane.Batch) (all []*dataplane.Vertex, from time.Time) {
	b.Helper()
	for i := range replicas {
		all = append(all, s.start("source", i))
	}
	var stops []func()
	for _, v := range all {
		stops = append(stops, v.Source(batch))
	}
	from = first(b, all...)
	time.Sleep(12 * time.Second)
	for i, v := range all {
		stops[i]()
		v.Stop()
	}
	return all, from
}

// steady returns the messages per second over the ten seconds after the first second.
func steady(from time.Time, all ...*dataplane.Vertex) float64 {
	return float64(between(from.Add(time.Second), from.Add(11*time.Second), all...)) / 10
}

// BenchmarkNumaflowSource measures one replica for 10 s after the first second.
func BenchmarkNumaflowSource(b *testing.B) {
	for _, c := range []struct{ rate, batch int }{{100, 500}, {1000, 100}} {
		b.Run(fmt.Sprint(c.rate), func(b *testing.B) {
			measured(b, func(b *testing.B) {
				s := newScene(b, fmt.Sprintf("messageRate: %d/s", c.rate), "")
				all, from := sources(b, s, 1, dataplane.Batch{Size: c.batch, Timeout: time.Second})
				b.ReportMetric(dataplane.Speed(500*time.Millisecond, from.Add(time.Second), all...), "messages/s")
				b.ReportMetric(float64(between(from, from.Add(time.Second), all...)), "first-second")
				b.ReportMetric(float64(dataplane.Window(time.Second, from, all...)), "most-in-1s")
				b.ReportMetric(float64(dataplane.Window(100*time.Millisecond, from, all...)), "most-in-100ms")
			})
		})
	}
}

// BenchmarkNumaflowGaps measures sources with a gap before the next Read: batches that do not fill
// wait for readTimeout once more, or the sink is slow. The metric messages/s is measured from batch
// to batch. The metric emptiest is the lowest number of messages in a second plus a gap, as a
// percentage of the limit's messages in that second.
func BenchmarkNumaflowGaps(b *testing.B) {
	for _, c := range []struct {
		name           string
		rate, replicas int
		gap            time.Duration
		batch          dataplane.Batch
	}{
		{"unfilled", 100, 1, time.Second, dataplane.Batch{Size: 500}},
		{"replicas", 500, 2, time.Second, dataplane.Batch{Size: 500}},
		{"sink200ms", 100, 1, 200 * time.Millisecond, dataplane.Batch{Size: 50, SinkTime: 200 * time.Millisecond}},
		{"sink50ms", 1000, 1, 50 * time.Millisecond, dataplane.Batch{Size: 100, SinkTime: 50 * time.Millisecond}},
		{"edge", 100, 1, time.Second, dataplane.Batch{Size: 100}}, // readBatchSize = limit x readTimeout
	} {
		b.Run(c.name, func(b *testing.B) {
			measured(b, func(b *testing.B) {
				s := newScene(b, fmt.Sprintf("messageRate: %d/s", c.rate), "")
				var all []*dataplane.Vertex
				var stops []func()
				for i := range c.replicas {
					all = append(all, s.start("source", i))
				}
				for _, v := range all {
					stops = append(stops, v.Source(c.batch))
				}
				from := first(b, all...).Add(3 * time.Second)
				time.Sleep(time.Until(from.Add(20 * time.Second)))
				end := time.Now()
				for i, v := range all {
					stops[i]()
					v.Stop()
				}
				b.ReportMetric(dataplane.Speed(c.gap/2, from, all...), "messages/s")
				b.ReportMetric(float64(dataplane.Window(time.Second, from, all...)), "most-in-1s")
				emptiest := c.rate
				for at := from; at.Add(time.Second + c.gap).Before(end); at = at.Add(100 * time.Millisecond) {
					emptiest = min(emptiest, between(at, at.Add(time.Second+c.gap), all...))
				}
				b.ReportMetric(100*float64(emptiest)/float64(c.rate), "%-emptiest")
			})
		})
	}
}

// BenchmarkNumaflowReplicas measures three replicas on one Redis, and two without a permit store,
// whose number is in the policy.
func BenchmarkNumaflowReplicas(b *testing.B) {
	for name, c := range map[string]struct {
		fields, permits string
		replicas        int
	}{
		"redis":   {"messageRate: 1000/s", "", 3},
		"nostore": {"messageRate: 1000/s, sharing: {mode: split, replicas: 2}", "none:", 2},
	} {
		b.Run(name, func(b *testing.B) {
			measured(b, func(b *testing.B) {
				s := newScene(b, c.fields, c.permits)
				all, from := sources(b, s, c.replicas, dataplane.Batch{Size: 100, Timeout: time.Second})
				b.ReportMetric(steady(from, all...), "messages/s")
				b.ReportMetric(float64(dataplane.Window(time.Second, from, all...)), "most-in-1s")
			})
		})
	}
}

// BenchmarkNumaflowScaleDown measures two replicas that split 1000/s with a pool TTL of 10 s. One
// ends; the speed of the other is measured from 11 s later on.
func BenchmarkNumaflowScaleDown(b *testing.B) {
	for _, name := range []string{"clean", "kill"} {
		b.Run(name, func(b *testing.B) {
			measured(b, func(b *testing.B) {
				s := newScene(b, "messageRate: 1000/s, sharing: {mode: split, poolTTL: 10s}", "")
				stays, goes := s.start("source", 0), s.start("source", 1)
				batch := dataplane.Batch{Size: 100, Timeout: time.Second}
				stop, stopOther := stays.Source(batch), goes.Source(batch)
				require.Eventually(b, func() bool {
					return len(stays.Arrivals()) > 0 && len(goes.Arrivals()) > 0
				}, throttletest.Patience, 10*time.Millisecond)
				from := time.Now()
				time.Sleep(2 * time.Second)
				if name == "kill" {
					goes.Kill()
				}
				stopOther()
				gone := time.Now()
				if name == "clean" {
					goes.Stop()
				}
				time.Sleep(16 * time.Second)
				stop()
				n := between(gone.Add(11*time.Second), gone.Add(16*time.Second), stays)
				b.ReportMetric(float64(n)/50, "%-of-limit")
				b.ReportMetric(float64(dataplane.Window(time.Second, from, stays, goes)), "most-in-1s")
			})
		})
	}
}

// BenchmarkNumaflowFew measures 2/s over five replicas for 20 s. The metric least is the lowest
// number of messages of one replica.
func BenchmarkNumaflowFew(b *testing.B) {
	measured(b, func(b *testing.B) {
		s := newScene(b, "messageRate: 2/s", "")
		var all []*dataplane.Vertex
		var stops []func()
		for i := range 5 {
			all = append(all, s.start("source", i))
		}
		for _, v := range all {
			stops = append(stops, v.Source(dataplane.Batch{Size: 500, Timeout: time.Second}))
		}
		from := first(b, all...)
		time.Sleep(21 * time.Second)
		slowest, least := time.Duration(0), 100
		for i, v := range all {
			stops[i]()
			slowest = max(slowest, v.Stop())
			least = min(least, len(v.Arrivals()))
		}
		n := between(from.Add(time.Second), from.Add(21*time.Second), all...)
		b.ReportMetric(float64(n)/20, "messages/s")
		b.ReportMetric(float64(least), "least")
		b.ReportMetric(slowest.Seconds(), "s-to-stop")
	})
}

// BenchmarkNumaflowMap measures 100/s in batches of 500, also with half of the data dropped.
// Dropped data do not count.
func BenchmarkNumaflowMap(b *testing.B) {
	for name, drops := range map[string]bool{"all": false, "half": true} {
		b.Run(name, func(b *testing.B) {
			measured(b, func(b *testing.B) {
				v := newScene(b, "messageRate: 100/s", "").start("map", 0)
				stop := v.Map(dataplane.Batch{Size: 500}, func(i int) []string {
					if drops && i%2 == 0 {
						return []string{"drop"}
					}
					return nil
				})
				from := first(b, v)
				time.Sleep(22 * time.Second)
				n := between(from.Add(2*time.Second), from.Add(22*time.Second), v)
				b.ReportMetric(float64(n)/20, "useful/s")
				stop()
			})
		})
	}
}

// BenchmarkNumaflowSink measures 50/s in batches of 100, where each call of the user's sink takes
// 20 ms. Batches are answered as a whole, so the speed is measured over ten batches.
func BenchmarkNumaflowSink(b *testing.B) {
	measured(b, func(b *testing.B) {
		v := newScene(b, "messageRate: 50/s", "").start("sink", 0)
		stop := v.Sink(dataplane.Batch{Size: 100})
		from := first(b, v)
		require.Eventually(b, func() bool { return len(v.Arrivals()) >= 1100 }, throttletest.Patience, time.Millisecond)
		last := v.Arrivals()[1099]
		stop()
		b.ReportMetric(1000/last.Sub(from).Seconds(), "messages/s")
	})
}

// BenchmarkNumaflowUnlimited reads batches of 500 from a source without the wrapper, and from one
// whose wrapper has no limit. The CPU time is that of the vertex, a process of its own.
func BenchmarkNumaflowUnlimited(b *testing.B) {
	measured(b, func(b *testing.B) {
		s := newScene(b, "mode: enforce", "")
		bare := scene{t: b, env: append(slices.Clone(s.env), "VERTEX_BARE=1")}
		read := func(v *dataplane.Vertex) func() pairs.Cost {
			return func() pairs.Cost {
				v.Forget()
				cpu, from := v.CPU(), time.Now()
				stop := v.Source(dataplane.Batch{Size: 500, Timeout: time.Second})
				time.Sleep(time.Second)
				stop()
				wall := time.Since(from)
				return pairs.Cost{Messages: len(v.Arrivals()), Wall: wall, CPU: v.CPU() - cpu}
			}
		}
		pairs.Report(b, 31, read(bare.start("source", 1)), read(s.start("source", 0)))
	})
}

// BenchmarkNumaflowStore measures 100/s in batches of 50, which fill, while Redis is unavailable
// for 10 s (messages/s-away) and in the 5 s after that (messages/s-after).
func BenchmarkNumaflowStore(b *testing.B) {
	measured(b, func(b *testing.B) {
		redis := services.RedisServer(b)
		v := newScene(b, "messageRate: 100/s", redis.URL).start("source", 0)
		stop := v.Source(dataplane.Batch{Size: 50, Timeout: time.Second})
		first(b, v)
		time.Sleep(3 * time.Second)
		redis.Kill()
		from := time.Now()
		time.Sleep(10 * time.Second)
		redis.Start()
		back := time.Now()
		time.Sleep(6 * time.Second)
		stop()
		b.ReportMetric(float64(between(from, back, v))/10, "messages/s-away")
		b.ReportMetric(float64(between(back, back.Add(5*time.Second), v))/5, "messages/s-after")
		b.ReportMetric(float64(dataplane.Window(time.Second, from, v)), "most-in-1s")
	})
}
