// Package numaflow_test runs user-defined vertices as processes, as somebody would deploy them, under a data plane.
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

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// binaries is the directory of the vertices that are run.
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
	_ = os.RemoveAll(binaries) // of the system's temporary ones
	os.Exit(code)
}

// A scene is a MonoVertex with its policy.
type scene struct {
	t   testing.TB
	env []string
}

// newScene has a policy of some fields, in YAML's flow form, and a Redis for its permits, if ledger is "".
func newScene(t testing.TB, fields, ledger string) *scene {
	t.Helper()
	if ledger == "" {
		ledger = services.Redis(t)
	}
	return &scene{t, append(dataplane.Env(t, fields, ledger), throttle.EnvCluster+"="+services.Name(t))}
}

func (s *scene) start(kind string, replica int) *dataplane.Vertex {
	s.t.Helper()
	kinds := map[string]dataplane.Kind{"source": dataplane.Source, "map": dataplane.Map, "sink": dataplane.Sink}
	return dataplane.Start(s.t, kinds[kind], append(slices.Clone(s.env), fmt.Sprint("NUMAFLOW_REPLICA=", replica)), filepath.Join(binaries, "vertex"), kind)
}

// between counts what arrived in [from, to) at all of them.
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

// check holds what came in the seconds from a time on against a rate: never over, and not far under.
func check(t *testing.T, rate float64, from time.Time, seconds int, vertices ...*dataplane.Vertex) {
	t.Helper()
	n := between(from, from.Add(time.Duration(seconds)*time.Second), vertices...)
	assert.LessOrEqual(t, float64(n), rate*(float64(seconds)+0.25)+1)
	assert.GreaterOrEqual(t, float64(n), 0.9*rate*float64(seconds))
}

// TestSource: a limit under the batch's size, and one over it.
func TestSource(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate  int
		batch dataplane.Batch
	}{{100, dataplane.Batch{Size: 500, Timeout: time.Second}}, {1000, dataplane.Batch{Size: 100, Timeout: time.Second}}} {
		t.Run(fmt.Sprint(c.rate), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, fmt.Sprintf("messageRate: %d/s", c.rate), "")
			v := s.start("source", 0)
			from := time.Now()
			stop := v.Source(c.batch)
			time.Sleep(6 * time.Second)
			stop()
			check(t, float64(c.rate), from.Add(time.Second), 4, v)
			assert.LessOrEqual(t, dataplane.Window(time.Second, from, v), c.rate*5/4+1)
			assert.Less(t, v.Stop(), 5*time.Second)
		})
	}
}

// TestSources: three replicas have one limit.
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
	time.Sleep(6 * time.Second)
	check(t, 1000, from.Add(time.Second), 4, all...)
	assert.LessOrEqual(t, dataplane.Window(time.Second, from, all...), 1251)
}

// TestNoStore: replicas whose number the policy has need no store.
func TestNoStore(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 1000/s, sharing: split, replicas: 2", "none:")
	all := []*dataplane.Vertex{s.start("source", 0), s.start("source", 1)}
	from := time.Now()
	for _, v := range all {
		defer v.Source(dataplane.Batch{Size: 100, Timeout: time.Second})()
	}
	time.Sleep(6 * time.Second)
	check(t, 1000, from.Add(time.Second), 4, all...)
}

// TestScaleDown: of two that split a limit one goes, in peace or by a kill; the other has it all within the pool's TTL and a second.
func TestScaleDown(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"stop", "kill"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, "messageRate: 500/s, sharing: split, poolTTL: 2s", "")
			stays, goes := s.start("source", 0), s.start("source", 1)
			from := time.Now()
			defer stays.Source(dataplane.Batch{Size: 100, Timeout: time.Second})()
			stop := goes.Source(dataplane.Batch{Size: 100, Timeout: time.Second})
			time.Sleep(4 * time.Second)
			assert.InDelta(t, 250, between(from.Add(3*time.Second), from.Add(4*time.Second), stays), 75, "half")
			if name == "kill" {
				goes.Kill()
			}
			stop()
			if name == "stop" {
				assert.Less(t, goes.Stop(), 5*time.Second)
			}
			gone := time.Now()
			time.Sleep(6 * time.Second)
			check(t, 500, gone.Add(3*time.Second), 3, stays)
			assert.LessOrEqual(t, dataplane.Window(time.Second, from, stays, goes), 500*5/4+1)
		})
	}
}

// TestFewerThanReplicas: two a second for five replicas come to each in turn, and a stop does not wait for them.
func TestFewerThanReplicas(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 2/s", "")
	var all []*dataplane.Vertex
	var stops []func()
	for i := range 5 {
		all = append(all, s.start("source", i))
	}
	from := time.Now()
	for _, v := range all {
		stops = append(stops, v.Source(dataplane.Batch{Size: 500, Timeout: time.Second}))
	}
	time.Sleep(13 * time.Second)
	check(t, 2, from.Add(time.Second), 12, all...)
	for _, v := range all {
		assert.GreaterOrEqual(t, len(v.Arrivals()), 2)
	}
	for i, v := range all {
		stops[i]()
		assert.Less(t, v.Stop(), 5*time.Second)
	}
}

// TestMap: data, and of data half of which are dropped, useful ones, come at the limit.
func TestMap(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]int{"all": 0, "half": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newScene(t, "messageRate: 100/s", "").start("map", 0)
			from := time.Now()
			stop := v.Map(dataplane.Batch{Size: 500}, func(i int) []string {
				if drop > 0 && i%drop == 0 {
					return []string{"drop"}
				}
				return nil
			})
			time.Sleep(6 * time.Second)
			check(t, 100, from.Add(time.Second), 4, v)
			stop()
			assert.Less(t, v.Stop(), 5*time.Second)
		})
	}
}

// TestSink: data come at the limit, and each is answered.
func TestSink(t *testing.T) {
	t.Parallel()
	v := newScene(t, "messageRate: 50/s", "").start("sink", 0)
	from := time.Now()
	stop := v.Sink(dataplane.Batch{Size: 25})
	time.Sleep(6 * time.Second)
	stop()
	n := len(v.Arrivals()) // whole batches
	took := time.Since(from).Seconds()
	assert.LessOrEqual(t, float64(n), 50*(took+0.25)+1)
	assert.GreaterOrEqual(t, float64(n), 0.9*50*took-25)
	assert.Less(t, v.Stop(), 5*time.Second)
}
