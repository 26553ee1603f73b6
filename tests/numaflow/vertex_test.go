// Package numaflow_test runs user-defined vertices as processes under a data plane, as users deploy
// them.
package numaflow_test

import (
	"cmp"
	"encoding/json"
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
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
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
	t                testing.TB
	permits, cluster string
	env              []string
}

// newScene returns a scene whose policy has these fields in YAML's flow form. If permits is empty,
// its permit store is a Redis.
func newScene(t testing.TB, fields, permits string) *scene {
	t.Helper()
	if permits == "" {
		permits = services.Redis(t)
	}
	s := &scene{t: t, permits: permits, cluster: services.Name(t)}
	s.env = append(dataplane.Env(t, fields, permits), throttle.EnvCluster+"="+s.cluster)
	return s
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

// arrived waits until n messages more have arrived at each of the vertices.
func arrived(t *testing.T, n int, vertices ...*dataplane.Vertex) {
	t.Helper()
	for _, v := range vertices {
		before := len(v.Arrivals())
		require.Eventually(t, func() bool { return len(v.Arrivals()) >= before+n }, throttletest.Patience, 5*time.Millisecond,
			"%d messages more than %d", n, before)
	}
}

// neverOver checks that no more messages have arrived since from than a rate allows. The bound
// includes 250 ms, the longest time between two Reads, and one batch for each of at most three
// replicas at a time: a batch that does not fill, as when the pool changes, leaves a gap in which a
// replica acquires the next one.
func neverOver(t *testing.T, rate float64, from time.Time, gap time.Duration, batch int, vertices ...*dataplane.Vertex) {
	t.Helper()
	var all []window.Event
	for _, v := range vertices {
		for _, at := range v.Arrivals() {
			all = append(all, window.Event{At: at.Sub(from), N: 1})
		}
	}
	slices.SortFunc(all, func(a, b window.Event) int { return cmp.Compare(a.At, b.At) })
	extra := float64(1 + batch*min(3, len(vertices)))
	assert.NoError(t, window.WithinRate(rate, gap+250*time.Millisecond, extra, all))
}

// A sourceCase is a limit of a source and its batches.
type sourceCase struct {
	rate  int
	batch dataplane.Batch
	gap   time.Duration // until a chunk that does not fill is acknowledged
}

// sourceCases have limits below and above the batch size.
var sourceCases = []sourceCase{
	{100, dataplane.Batch{Size: 500}, time.Second},
	{100, dataplane.Batch{Size: 500, ReadAhead: true}, 0},
	{1000, dataplane.Batch{Size: 100}, 0},
}

func (c sourceCase) String() string { return fmt.Sprint(c.rate, c.batch.Size, c.batch.ReadAhead) }

// TestSource: a source delivers all messages in order, each once, and never more than its limit
// allows.
func TestSource(t *testing.T) {
	t.Parallel()
	for _, c := range sourceCases {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			v := newScene(t, fmt.Sprintf("messageRate: %d/s", c.rate), services.Patient(services.Redis(t))).start("source", 0)
			from := time.Now()
			stop := v.Source(c.batch)
			arrived(t, 3*c.rate, v)
			stop()
			neverOver(t, float64(c.rate), from, c.gap, 0, v)
			for i, value := range v.Values() {
				require.Equal(t, fmt.Sprint(i+1), value, "in order, each once")
			}
			v.Stop()
		})
	}
}

// TestSourceCalls: Nack and Pending reach the user's source.
func TestSourceCalls(t *testing.T) {
	t.Parallel()
	v := newScene(t, "messageRate: 100/s", services.Patient(services.Redis(t))).start("source", 0)
	assert.EqualValues(t, 1_000_000, v.Pending())
	v.Nack(v.ReadOne(dataplane.Batch{Size: 3, Timeout: time.Second}))
	v.ReadOne(dataplane.Batch{Size: 3, Timeout: time.Second})
	assert.Equal(t, []string{"1", "2", "3", "1", "2", "3"}, v.Values())
	v.MayEnd()
}

// TestSources: three replicas share one limit.
func TestSources(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 1000/s", services.Patient(services.Redis(t)))
	all := []*dataplane.Vertex{s.start("source", 0), s.start("source", 1), s.start("source", 2)}
	from := time.Now()
	for _, v := range all {
		defer v.Source(usual)()
	}
	arrived(t, 500, all...)
	neverOver(t, 1000, from, 0, usual.Size, all...)
}

// TestNoPermitStore: replicas whose number is in the policy need no permit store.
func TestNoPermitStore(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 1000/s, sharing: {mode: split, replicas: 2}", "none:")
	all := []*dataplane.Vertex{s.start("source", 0), s.start("source", 1)}
	from := time.Now()
	for _, v := range all {
		defer v.Source(usual)()
	}
	arrived(t, 500, all...)
	neverOver(t, 1000, from, 0, usual.Size, all...)
}

// TestScaleDown: of two replicas that split a limit, one stops or is killed. The other one then has
// the whole limit, and goes on.
func TestScaleDown(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"stop", "kill"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rate = 500
			s := newScene(t, "messageRate: 500/s, sharing: {mode: split, poolTTL: 2s}", services.Patient(services.Redis(t)))
			stays, goes := s.start("source", 0), s.start("source", 1)
			from := time.Now()
			defer stays.Source(usual)()
			stop := goes.Source(usual)
			arrived(t, rate, stays, goes)
			if name == "kill" {
				goes.Kill()
			}
			stop()
			if name == "stop" {
				goes.Stop()
			}
			s.alone()
			arrived(t, rate, stays)
			neverOver(t, rate, from, 0, usual.Size, stays, goes)
		})
	}
}

// alone waits until one replica is left that splits the limit, by the statuses in the permit store.
func (s *scene) alone() {
	s.t.Helper()
	store, err := throttle.OpenPermits(services.Patient(s.permits))
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, store.Close()) }()
	throttletest.Until(s.t, "one replica has the whole limit", func() bool {
		statuses, err := store.Published(s.t.Context(), s.cluster)
		var status dispatch.Stats
		return err == nil && len(statuses) == 1 && json.Unmarshal(statuses[0], &status) == nil &&
			len(status.Subscriptions) == 1 && status.Subscriptions[0].Limits[0].Pool == 1
	})
}

// TestFewerThanReplicas: five replicas take turns at a limit of two messages a second, and a stop
// does not wait for the next message.
func TestFewerThanReplicas(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 2/s", services.Patient(services.Redis(t)))
	var all []*dataplane.Vertex
	var stops []func()
	for i := range 5 {
		all = append(all, s.start("source", i))
	}
	from := time.Now()
	for _, v := range all {
		stops = append(stops, v.Source(dataplane.Batch{Size: 500, Timeout: time.Second}))
	}
	arrived(t, 2, all...)
	for i, v := range all {
		stops[i]()
		v.Stop()
	}
	neverOver(t, 2, from, time.Second, 0, all...)
}

// A mapCase is a map that drops one of drop data.
type mapCase struct {
	kind        string
	batch, drop int
}

var mapCases = []mapCase{
	{"map", 500, 0}, {"map", 500, 2}, {"mapstream", 500, 2},
	{"batchmap", 50, 2}, // it answers whole batches
}

func (c mapCase) String() string { return fmt.Sprint(c.kind, c.drop) }

// start runs the map until stop is called.
func (c mapCase) start(t testing.TB, permits string) (v *dataplane.Vertex, stop func()) {
	v = newScene(t, "messageRate: 100/s", permits).start(c.kind, 0)
	return v, v.Map(dataplane.Batch{Size: c.batch}, func(i int) []string {
		if c.drop > 0 && i%c.drop == 0 {
			return []string{"drop"}
		}
		return nil
	})
}

// TestMap: maps handle data at the limit. Dropped data do not count.
func TestMap(t *testing.T) {
	t.Parallel()
	for _, c := range mapCases {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			from := time.Now()
			v, stop := c.start(t, services.Patient(services.Redis(t)))
			arrived(t, 200, v)
			stop()
			neverOver(t, 100, from, 0, 0, v)
			assert.Zero(t, v.Refused())
			v.Stop()
		})
	}
}

// TestSink: a sink handles data at the limit, and answers each.
func TestSink(t *testing.T) {
	t.Parallel()
	v := newScene(t, "messageRate: 50/s", services.Patient(services.Redis(t))).start("sink", 0)
	from := time.Now()
	stop := v.Sink(dataplane.Batch{Size: 25})
	arrived(t, 100, v)
	stop()
	neverOver(t, 50, from, 0, 0, v)
	v.Stop()
}

// A gapsCase is a data plane that reads again only when a batch is acknowledged.
type gapsCase struct {
	rate, replicas int
	gap            time.Duration // the longest between two Reads
	batch          dataplane.Batch
}

var gapsCases = map[string]gapsCase{
	"batches that do not fill": {100, 1, time.Second, dataplane.Batch{Size: 500}},
	"two replicas":             {500, 2, time.Second, dataplane.Batch{Size: 500}},
	"a slow sink": {100, 1, 200 * time.Millisecond,
		dataplane.Batch{Size: 50, SinkTime: 200 * time.Millisecond}},
	"a fast limit": {1000, 1, 50 * time.Millisecond,
		dataplane.Batch{Size: 100, SinkTime: 50 * time.Millisecond}},
	"a very slow sink": {100, 1, 4 * time.Second,
		dataplane.Batch{Size: 500, SinkTime: 3 * time.Second}},
}

// start starts the replicas, and their data planes, until the test ends.
func (c gapsCase) start(t *testing.T, permits string) (all []*dataplane.Vertex) {
	s := newScene(t, fmt.Sprintf("messageRate: %d/s", c.rate), permits)
	for i := range c.replicas {
		all = append(all, s.start("source", i))
	}
	for _, v := range all {
		t.Cleanup(v.Source(c.batch))
	}
	return all
}

// TestGaps: sources whose data planes read now and then deliver no more than their limit allows in
// the time that has passed, and in one gap.
func TestGaps(t *testing.T) {
	t.Parallel()
	for name, c := range gapsCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := time.Now()
			all := c.start(t, services.Patient(services.Redis(t)))
			arrived(t, 2*c.rate, all...)
			neverOver(t, float64(c.rate), from, c.gap, 0, all...)
		})
	}
}
