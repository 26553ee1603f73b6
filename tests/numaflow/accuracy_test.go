package numaflow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/services"
)

const s = time.Second

// count returns the messages that arrive in the next d.
func count(d time.Duration, vertices ...*dataplane.Vertex) float64 {
	from := time.Now()
	time.Sleep(d)
	return float64(between(from, from.Add(d), vertices...))
}

// percent is count in percent of what a rate gives in d.
func percent(rate int, d time.Duration, vertices ...*dataplane.Vertex) float64 {
	return 100 * count(d, vertices...) / (float64(rate) * d.Seconds())
}

// highest returns the most messages in any d, in percent of what a rate gives in it.
func highest(rate int, d time.Duration, from time.Time, vertices ...*dataplane.Vertex) float64 {
	return 100 * float64(dataplane.Window(d, from, vertices...)) / (float64(rate) * d.Seconds())
}

func TestAccuracySource(t *testing.T) {
	t.Parallel()
	for _, c := range sourceCases {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				v := newScene(t, fmt.Sprintf("messageRate: %d/s", c.rate), "").start("source", 0)
				from := time.Now()
				stop := v.Source(c.batch)
				time.Sleep(s)
				m.AtLeast("used, %", percent(c.rate, 8*s, v), 90*(8*s-c.gap).Seconds()/8)
				stop()
				m.AtMost("any second, %", highest(c.rate, s, from, v), 125+100*c.gap.Seconds())
				m.AtMost("slowest Read beyond its time-out, ms", v.LateRead().Seconds()*1000, 500)
				m.AtMost("stop, s", v.Stop().Seconds(), 5)
			})
		})
	}
}

func TestAccuracySources(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fields, permits string
		replicas        int
	}{
		"three":                      {"messageRate: 1000/s", "", 3},
		"two without a permit store": {"messageRate: 1000/s, sharing: {mode: split, replicas: 2}", "none:", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				scene := newScene(t, c.fields, c.permits)
				var all []*dataplane.Vertex
				for i := range c.replicas {
					all = append(all, scene.start("source", i))
				}
				from := time.Now()
				var stops []func()
				for _, v := range all {
					stops = append(stops, v.Source(usual))
				}
				time.Sleep(s)
				m.Within("used, %", percent(1000, 4*s, all...), 90, 103)
				m.AtMost("any second, %", highest(1000, s, from, all...), 125)
				for _, stop := range stops {
					stop()
				}
			})
		})
	}
}

// TestAccuracyScaleDown: of two replicas that split a limit, one stops or is killed.
func TestAccuracyScaleDown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ttl    string
		within time.Duration // until the other has the whole limit
	}{"stop": {"4s", s}, "kill": {"2s", 3 * s}} { // a stopping replica says so
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				scene := newScene(t, "messageRate: 500/s, sharing: {mode: split, poolTTL: "+c.ttl+"}", "")
				stays, goes := scene.start("source", 0), scene.start("source", 1)
				from := time.Now()
				end := stays.Source(usual)
				stop := goes.Source(usual)
				time.Sleep(5 * s)
				m.Within("used by one of two, %", percent(500, 2*s, stays), 40, 60)
				// The first batches may be small ones. The sink waits for more then: that is the gap.
				gap := usual.Timeout.Seconds()
				m.AtMost("any second of the start, %", highest(500, s, from, stays, goes), 125+100*gap)
				from = time.Now().Add(-s)
				if name == "kill" {
					goes.Kill()
				}
				stop()
				if name == "stop" {
					goes.Stop()
				}
				time.Sleep(c.within)
				figure := fmt.Sprintf("used by the other one %v later, %%", c.within)
				m.Within(figure, percent(500, 2*s, stays), 90, 112)
				m.AtMost("any second from then on, %", highest(500, s, from, stays, goes), 125)
				end()
			})
		})
	}
}

func TestAccuracyFewerThanReplicas(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		scene := newScene(t, "messageRate: 2/s", "")
		var all []*dataplane.Vertex
		for i := range 5 {
			all = append(all, scene.start("source", i))
		}
		var stops []func()
		for _, v := range all {
			stops = append(stops, v.Source(dataplane.Batch{Size: 500, Timeout: s}))
		}
		time.Sleep(s)
		from := time.Now()
		m.Within("used, %", percent(2, 10*s, all...), 85, 106)
		fewest := between(from, time.Now(), all...)
		for _, v := range all {
			fewest = min(fewest, between(from, time.Now(), v))
		}
		m.AtLeast("messages of the replica with the fewest, of 4", float64(fewest), 2)
		for _, stop := range stops {
			stop()
		}
	})
}

func TestAccuracyMap(t *testing.T) {
	t.Parallel()
	for _, c := range mapCases {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				v, stop := c.start(t, "")
				time.Sleep(s)
				m.Within("used, %", percent(100, 4*s, v), 90, 107)
				stop()
				m.AtMost("stop, s", v.Stop().Seconds(), 5)
			})
		})
	}
}

func TestAccuracySink(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		v := newScene(t, "messageRate: 50/s", "").start("sink", 0)
		stop := v.Sink(dataplane.Batch{Size: 25})
		time.Sleep(s)
		m.Within("used in whole batches, %", percent(50, 5*s, v), 80, 115)
		stop()
		m.AtMost("stop, s", v.Stop().Seconds(), 5)
	})
}

// TestAccuracyGaps: the permits of the time between two Reads are not lost.
func TestAccuracyGaps(t *testing.T) {
	t.Parallel()
	for name, c := range gapsCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				from := time.Now()
				all := c.start(t, "")
				cycle := 2 * (c.gap + s)
				time.Sleep(cycle)
				measured := time.Now()
				time.Sleep(4 * cycle)
				m.AtLeast("used, %", 100*dataplane.Speed(c.gap/2, measured, all...)/float64(c.rate), 97)
				for _, d := range []time.Duration{s / 10, s, 5 * s} {
					bound := 100 * ((d + c.gap + s/4).Seconds() + 1/float64(c.rate)) / d.Seconds()
					m.AtMost(fmt.Sprintf("any %v, %%", d), highest(c.rate, d, from, all...), bound)
				}
			})
		})
	}
}

func TestAccuracyPool(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		scene := newScene(t, "messageRate: 500/s, sharing: {mode: split, poolTTL: 1s}", "")
		from := time.Now()
		var all []*dataplane.Vertex
		var stops []func()
		for i := range 3 {
			all = append(all, scene.start("source", i))
			stops = append(stops, all[i].Source(usual))
			time.Sleep(s)
		}
		time.Sleep(s)
		m.Within("used by three, %", percent(500, 2*s, all...), 90, 112)
		stops[0]()
		all[0].Stop()
		all[1].Kill()
		stops[1]()
		time.Sleep(2 * s)
		m.Within("used by the last one 2 s later, %", percent(500, 2*s, all[2]), 90, 112)
		stops[2]()
		m.AtMost("any second, %", highest(500, s, from, all...), 125+20*3)
	})
}

// TestAccuracyUnavailable: Redis is unavailable for four seconds.
func TestAccuracyUnavailable(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		redis := services.RedisServer(t)
		v := newScene(t, "messageRate: 200/s", redis.URL).start("source", 0)
		from := time.Now()
		stop := v.Source(usual)
		time.Sleep(3 * s)
		redis.Kill()
		m.AtLeast("used without Redis, %", percent(200, 4*s, v), 75)
		redis.Start()
		time.Sleep(3 * s)
		m.AtMost("any second, %", highest(200, s, from, v), 125+50)
		stop()
	})
}

// TestAccuracyRamp: a new replica continues the ramp of its predecessor.
func TestAccuracyRamp(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		scene := newScene(t, "messageRate: 1000/s, ramp: {from: 50/s, over: 10s}", "")
		first := scene.start("source", 0)
		from := time.Now()
		stop := first.Source(usual)
		time.Sleep(5 * s)
		m.AtMost("messages in the first second of the ramp", float64(between(from, from.Add(s), first)), 200)
		stop()
		first.Stop()
		second := scene.start("source", 0)
		stop = second.Source(usual)
		time.Sleep(s / 2)
		m.AtLeast("messages in a second of its middle", count(s, second), 400)
		stop()
	})
}

// TestAccuracyStop: how long a stop takes while data wait for permits that would take minutes.
// Those whose permits come within the time that a vertex has are handled.
func TestAccuracyStop(t *testing.T) {
	t.Parallel()
	for name, c := range stopCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accuracy.Measure(t, func(m *accuracy.M) {
				_, took := c.stop(t, "")
				m.Within("stop, s", took.Seconds(), 3, 5.5)
			})
		})
	}
}
