// Package numaflow_test runs user-defined vertices as processes under a data plane, as users deploy
// them.
package numaflow_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// binaries is the directory of the vertex's binary.
var binaries string

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // they mostly wait
	var err error
	if binaries, err = os.MkdirTemp("", "numaflow"); err == nil {
		build := exec.Command("go", "build", "-o", binaries, "./vertex")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(binaries)
	os.Exit(code)
}

// A scene is a MonoVertex with its policy.
type scene struct {
	t   testing.TB
	env []string
}

// newScene returns a scene whose policy has these fields in YAML's flow form. If permits is empty,
// its permit store is a Redis.
func newScene(t testing.TB, fields, permits string) *scene {
	t.Helper()
	if permits == "" {
		permits = services.Redis(t)
	}
	return &scene{t, append(dataplane.Env(t, fields, permits), throttle.EnvCluster+"="+services.Name(t))}
}

func (s *scene) start(kind string, replica int) *dataplane.Vertex {
	s.t.Helper()
	kinds := map[string]dataplane.Kind{
		"source": dataplane.Source, "sink": dataplane.Sink,
		"map": dataplane.Map, "batchmap": dataplane.BatchMap, "mapstream": dataplane.MapStream,
	}
	env := append(slices.Clone(s.env), fmt.Sprint("NUMAFLOW_REPLICA=", replica))
	return dataplane.Start(s.t, kinds[kind], env, filepath.Join(binaries, "vertex"), kind)
}

// between counts the messages that arrived at all vertices in [from, to).
func between(from, to time.Time, vertices ...*dataplane.Vertex) (n int) {
	for _, v := range vertices {
		for _, at := range v.Arrivals() {
			if !at.Before(from) && at.Before(to) {
				n++
			}
		}
	}
	return n
}

// check requires that the messages of the next seconds do not exceed a rate and, loosely, reach it.
func check(
	t *testing.T, loose assert.TestingT, rate float64, seconds int, vertices ...*dataplane.Vertex,
) {
	t.Helper()
	from, d := time.Now(), time.Duration(seconds)*time.Second
	time.Sleep(d)
	n := between(from, from.Add(d), vertices...)
	assert.LessOrEqual(t, float64(n), rate*(d.Seconds()+0.25)+1)
	assert.GreaterOrEqual(loose, float64(n), 0.9*rate*d.Seconds())
}

// atMost requires that no second since from exceeds a rate. The bound includes 250 ms more, for
// permits that are used late, and one batch for each of at most three replicas at a time: a batch
// that does not fill, as when the pool changes, leaves a gap in which a replica acquires the next
// one.
func atMost(t *testing.T, rate int, from time.Time, vertices ...*dataplane.Vertex) {
	t.Helper()
	limit := rate*5/4 + 1 + usual.Size*min(3, len(vertices))
	assert.LessOrEqual(t, dataplane.Window(time.Second, from, vertices...), limit)
}

// hold repeats check until its loose assertions hold.
func hold(t *testing.T, rate float64, seconds int, vertices ...*dataplane.Vertex) {
	t.Helper()
	loosely.Hold(t, func(loose assert.TestingT) { check(t, loose, rate, seconds, vertices...) })
}

// TestSource: a source reaches limits below and above the batch size.
func TestSource(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate  int
		batch dataplane.Batch
		gap   float64 // seconds until a chunk that does not fill is acknowledged
	}{
		{100, dataplane.Batch{Size: 500}, 1},
		{100, dataplane.Batch{Size: 500, ReadAhead: true}, 0},
		{1000, dataplane.Batch{Size: 100}, 0},
	} {
		t.Run(fmt.Sprint(c.rate, c.batch.Size, c.batch.ReadAhead), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, fmt.Sprintf("messageRate: %d/s", c.rate), "")
			v := s.start("source", 0)
			from := time.Now()
			stop := v.Source(c.batch)
			time.Sleep(time.Second)
			loosely.Hold(t, func(loose assert.TestingT) {
				n := len(v.Arrivals())
				time.Sleep(8 * time.Second)
				assert.GreaterOrEqual(loose, float64(len(v.Arrivals())-n), 0.9*float64(c.rate)*(8-c.gap))
			})
			stop()
			assert.LessOrEqual(t, float64(dataplane.Window(time.Second, from, v)), float64(c.rate)*(1.25+c.gap)+1)
			for i, value := range v.Values() {
				require.Equal(t, fmt.Sprint(i+1), value, "in order, each once")
			}
			assert.Less(t, v.Stop(), 5*time.Second)
		})
	}
}

// TestSourceCalls: Nack and Pending reach the user's source.
func TestSourceCalls(t *testing.T) {
	t.Parallel()
	v := newScene(t, "messageRate: 100/s", "").start("source", 0)
	assert.EqualValues(t, 1_000_000, v.Pending())
	v.Nack(v.ReadOne(dataplane.Batch{Size: 3, Timeout: time.Second}))
	v.ReadOne(dataplane.Batch{Size: 3, Timeout: time.Second})
	assert.Equal(t, []string{"1", "2", "3", "1", "2", "3"}, v.Values())
	v.MayEnd()
}

// TestSources: three replicas share one limit.
func TestSources(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 1000/s", "")
	var all []*dataplane.Vertex
	for i := range 3 {
		all = append(all, s.start("source", i))
	}
	from := time.Now()
	for _, v := range all {
		defer v.Source(dataplane.Batch{Size: 100, Timeout: time.Second})()
	}
	time.Sleep(time.Second)
	hold(t, 1000, 4, all...)
	atMost(t, 1000, from, all...)
}

// TestNoPermitStore: replicas whose number is in the policy need no permit store.
func TestNoPermitStore(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 1000/s, sharing: {mode: split, replicas: 2}", "none:")
	all := []*dataplane.Vertex{s.start("source", 0), s.start("source", 1)}
	from := time.Now()
	for _, v := range all {
		defer v.Source(dataplane.Batch{Size: 100, Timeout: time.Second})()
	}
	time.Sleep(time.Second)
	hold(t, 1000, 4, all...)
	atMost(t, 1000, from, all...)
}

// TestScaleDown: of two replicas that split a limit, one stops or is killed. The other one has the
// whole limit a second after a stop, or a second after the pool TTL after a kill.
func TestScaleDown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ttl    string
		within time.Duration // until the other has the whole limit
	}{"stop": {"4s", time.Second}, "kill": {"2s", 3 * time.Second}} { // a stopping replica says so
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loosely.Hold(t, func(loose assert.TestingT) { // the whole test: it measures how soon
				s := newScene(t, "messageRate: 500/s, sharing: {mode: split, poolTTL: "+c.ttl+"}", "")
				stays, goes := s.start("source", 0), s.start("source", 1)
				from := time.Now()
				defer stays.Source(dataplane.Batch{Size: 100, Timeout: time.Second})()
				stop := goes.Source(dataplane.Batch{Size: 100, Timeout: time.Second})
				time.Sleep(7 * time.Second)
				half := between(from.Add(6*time.Second), from.Add(7*time.Second), stays)
				assert.InDelta(loose, 250, half, 75, "half of the limit")
				if name == "kill" {
					goes.Kill()
				}
				stop()
				if name == "stop" {
					assert.Less(t, goes.Stop(), 5*time.Second)
				}
				time.Sleep(c.within)
				check(t, loose, 500, 2, stays)
				atMost(t, 500, from, stays, goes)
			})
		})
	}
}

// TestFewerThanReplicas: five replicas take turns at a limit of two messages a second, and a stop
// does not wait for the next message.
func TestFewerThanReplicas(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 2/s", "")
	var all []*dataplane.Vertex
	var stops []func()
	for i := range 5 {
		all = append(all, s.start("source", i))
	}
	for _, v := range all {
		stops = append(stops, v.Source(dataplane.Batch{Size: 500, Timeout: time.Second}))
	}
	time.Sleep(time.Second)
	loosely.Hold(t, func(loose assert.TestingT) {
		from := time.Now()
		check(t, loose, 2, 8, all...)
		for _, v := range all {
			assert.GreaterOrEqual(loose, between(from, time.Now(), v), 2)
		}
	})
	for i, v := range all {
		stops[i]()
		assert.Less(t, v.Stop(), 5*time.Second)
	}
}

// TestMap: maps handle data at the limit. Dropped data do not count.
func TestMap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind        string
		batch, drop int
	}{
		{"map", 500, 0}, {"map", 500, 2}, {"mapstream", 500, 2},
		{"batchmap", 50, 2}, // it answers whole batches
	} {
		t.Run(fmt.Sprint(c.kind, c.drop), func(t *testing.T) {
			t.Parallel()
			v := newScene(t, "messageRate: 100/s", "").start(c.kind, 0)
			stop := v.Map(dataplane.Batch{Size: c.batch}, func(i int) []string {
				if c.drop > 0 && i%c.drop == 0 {
					return []string{"drop"}
				}
				return nil
			})
			time.Sleep(time.Second)
			hold(t, 100, 4, v)
			stop()
			assert.Zero(t, v.Refused())
			assert.Less(t, v.Stop(), 5*time.Second)
		})
	}
}

// TestSink: a sink handles data at the limit, and answers each.
func TestSink(t *testing.T) {
	t.Parallel()
	v := newScene(t, "messageRate: 50/s", "").start("sink", 0)
	loosely.Hold(t, func(loose assert.TestingT) {
		from, before := time.Now(), len(v.Arrivals())
		stop := v.Sink(dataplane.Batch{Size: 25})
		time.Sleep(5 * time.Second)
		stop()
		n := len(v.Arrivals()) - before // whole batches
		took := time.Since(from).Seconds()
		assert.LessOrEqual(t, float64(n), 50*(took+0.25)+1)
		assert.GreaterOrEqual(loose, float64(n), 0.9*50*took-25)
	})
	assert.Less(t, v.Stop(), 5*time.Second)
}

// TestGaps: the data plane reads again only when a batch is acknowledged. The permits of the time
// between two Reads are not lost.
func TestGaps(t *testing.T) {
	t.Parallel()
	type gaps struct {
		rate, replicas int
		gap            time.Duration // the longest between two Reads
		batch          dataplane.Batch
	}
	cases := map[string]gaps{
		"batches that do not fill": {100, 1, time.Second, dataplane.Batch{Size: 500}},
		"two replicas":             {500, 2, time.Second, dataplane.Batch{Size: 500}},
		"a slow sink": {100, 1, 200 * time.Millisecond,
			dataplane.Batch{Size: 50, SinkTime: 200 * time.Millisecond}},
		"a fast limit": {1000, 1, 50 * time.Millisecond,
			dataplane.Batch{Size: 100, SinkTime: 50 * time.Millisecond}},
	}
	if permitstest.Long() { // takes a minute or two
		cases = map[string]gaps{"a very slow sink": {
			100, 1, 4 * time.Second, dataplane.Batch{Size: 500, SinkTime: 3 * time.Second},
		}}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, fmt.Sprintf("messageRate: %d/s", c.rate), "")
			var all []*dataplane.Vertex
			for i := range c.replicas {
				all = append(all, s.start("source", i))
			}
			from := time.Now()
			for _, v := range all {
				defer v.Source(c.batch)()
			}
			cycle := 2 * (c.gap + time.Second)
			time.Sleep(cycle)
			loosely.Hold(t, func(loose assert.TestingT) {
				from := time.Now()
				time.Sleep(4 * cycle)
				speed := dataplane.Speed(c.gap/2, from, all...)
				t.Logf("%.1f/s", speed)
				assert.GreaterOrEqual(loose, speed, 0.97*float64(c.rate))
			})
			for _, d := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second} {
				highest := dataplane.Window(d, from, all...)
				limit := float64(c.rate)*(d+c.gap+250*time.Millisecond).Seconds() + 1
				assert.LessOrEqual(t, float64(highest), limit, "in %v", d)
			}
		})
	}
}
