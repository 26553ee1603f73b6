package numaflow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

var usual = dataplane.Batch{Size: 100, Timeout: time.Second}

// TestPoolChanges: one replica grows to three, all three are replaced one after the other, and one
// remains. Together they never exceed the limit, and the last one has all of it and goes on.
func TestPoolChanges(t *testing.T) {
	t.Parallel()
	const rate = 500
	s := newScene(t, "messageRate: 500/s, sharing: {mode: split, poolTTL: 1s}", services.Patient(services.Redis(t)))
	type running struct {
		*dataplane.Vertex
		stop func()
	}
	var all []*dataplane.Vertex
	start := func(i int) running {
		v := s.start("source", i)
		all = append(all, v)
		return running{v, v.Source(usual)}
	}
	end := func(r running) {
		r.stop()
		r.Stop()
	}
	from := time.Now()
	replicas := []running{start(0)}
	arrived(t, rate, all...)
	replicas = append(replicas, start(1), start(2))
	arrived(t, rate/3, all...)
	for i := range replicas {
		end(replicas[i])
		replicas[i] = start(i)
		arrived(t, rate/3, replicas[i].Vertex)
	}
	end(replicas[0])
	replicas[1].Kill()
	replicas[1].stop()
	s.alone()
	arrived(t, rate, replicas[2].Vertex)
	replicas[2].stop()
	neverOver(t, rate, from, 0, usual.Size, all...)
}

// TestPermitStoreUnavailable: while Redis is unavailable, the source continues at the limit and can
// be stopped. Its return causes no burst.
func TestPermitStoreUnavailable(t *testing.T) {
	t.Parallel()
	redis := services.RedisServer(t)
	v := newScene(t, "messageRate: 200/s", redis.URL).start("source", 0)
	from := time.Now()
	stop := v.Source(usual)
	for range 2 {
		arrived(t, 400, v)
		redis.Kill()
		arrived(t, 400, v)
		redis.Start()
	}
	arrived(t, 400, v)
	neverOver(t, 200, from, 0, usual.Size, v)
	redis.Kill()
	stop()
	v.Stop()
}

// TestPermitStoreAbsent: if the permit store is unavailable at the start, the source delivers
// nothing, or runs at a hundredth of the limit or less, as its onOutage says. It delivers at the
// limit when the permit store is there.
func TestPermitStoreAbsent(t *testing.T) {
	t.Parallel()
	for outage, most := range map[string]int{"stop": 0, "share": 20} {
		t.Run(outage, func(t *testing.T) {
			t.Parallel()
			redis := services.RedisServer(t)
			redis.Kill()
			v := newScene(t, "messageRate: 100/s, onOutage: "+outage, redis.URL).start("source", 0)
			from := time.Now()
			stop := v.Source(usual)
			if most > 0 {
				arrived(t, 1, v)
			}
			time.Sleep(2 * time.Second) // in which no more may come
			neverOver(t, 1, from, 0, most, v)
			if most == 0 {
				assert.Empty(t, v.Arrivals())
			}
			redis.Start()
			arrived(t, 200, v)
			neverOver(t, 100, from, 0, 0, v)
			stop()
			v.Stop()
		})
	}
}

// nacks makes a vertex answer with nacks.
const nacks = "VERTEX_NACKS=1"

// A stopCase is a vertex that is stopped while data wait for permits that would take minutes.
type stopCase struct{ kind, env string }

var stopCases = map[string]stopCase{
	"sink": {"sink", ""}, "sink that nacks": {"sink", nacks},
	"map that nacks": {"map", nacks}, "batch map that nacks": {"batchmap", nacks},
}

// stop starts the vertex and stops it, and returns how long that took.
func (c stopCase) stop(t *testing.T, permits string) (v *dataplane.Vertex, took time.Duration) {
	s := newScene(t, "messageRate: 1/s", permits)
	s.env = append(s.env, c.env)
	v = s.start(c.kind, 0)
	v.MayEnd()
	var stop func()
	b := dataplane.Batch{Size: 200}
	if c.kind == "sink" {
		stop = v.Sink(b)
	} else {
		stop = v.Map(b, func(int) []string { return nil })
	}
	require.Eventually(t, func() bool { return v.Delivered() >= 200 }, throttletest.Patience, time.Millisecond)
	time.Sleep(time.Second) // until they wait
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		stop()
	}()
	defer func() { <-answered }()
	took = v.Stop()
	return v, took
}

// TestStopWhileWaiting: a vertex whose data wait for permits that would take minutes can be
// stopped. Each datum is answered.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, c := range stopCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, _ := c.stop(t, services.Patient(services.Redis(t)))
			assert.Equal(t, 200, len(v.Arrivals())+v.Refused()+v.Failures())
			assert.Equal(t, c.env == nacks, v.Refused() > 0)
		})
	}
}

// TestSinkContainerStops: when only the sink's container ends, what waits is handed back.
// Redeliveries are bounded by the limit, even if the source redelivers at once.
func TestSinkContainerStops(t *testing.T) {
	t.Parallel()
	for env, handedBack := range map[string]func(*dataplane.Vertex) int{
		"": (*dataplane.Vertex).Failures, nacks: (*dataplane.Vertex).Refused,
	} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, "messageRate: 50/s", services.Patient(services.Redis(t)))
			s.env = append(s.env, env)
			v := s.start("sink", 0)
			from := time.Now()
			stop := v.Sink(dataplane.Batch{Size: 500, IgnoresDelay: true})
			time.Sleep(time.Second) // the batch waits by then; if not, the same holds
			terminated := time.Now()
			v.Terminate()
			throttletest.Until(t, "what waits is handed back", func() bool { return handedBack(v) > 0 })
			time.Sleep(2 * time.Second) // for more to come again
			again := handedBack(v)
			assert.LessOrEqual(t, float64(again), 50*time.Since(terminated).Seconds()+500, "the limit plus a batch")
			neverOver(t, 50, from, 0, 0, v)
			v.Kill()
			stop()
		})
	}
}

// TestDataPlaneReplaced: messages that a data plane had read when it died are nacked to the user's
// source, which delivers them to the next data plane.
func TestDataPlaneReplaced(t *testing.T) {
	t.Parallel()
	v := newScene(t, "messageRate: 100/s", services.Patient(services.Redis(t))).start("source", 0)
	v.DieAfterRead(dataplane.Batch{Size: 20, Timeout: time.Second})
	stop := v.Source(usual)
	arrived(t, 130, v)
	stop()
	v.Stop()
	again := v.Values()[20:]
	for _, value := range v.Values()[:20] {
		assert.Contains(t, again, value)
	}
}
