package numaflow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/services"
)

var usual = dataplane.Batch{Size: 100, Timeout: time.Second}

// TestPoolChanges: one replica grows to three, all three are replaced one after the other, and one
// remains. Together they never exceed the limit, and the last one uses all of it.
func TestPoolChanges(t *testing.T) {
	t.Parallel()
	s := newScene(t, "messageRate: 500/s, sharing: {mode: split, poolTTL: 1s}", "")
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
		assert.Less(t, r.Stop(), 5*time.Second)
	}
	from := time.Now()
	replicas := []running{start(0)}
	time.Sleep(time.Second)
	replicas = append(replicas, start(1), start(2))
	time.Sleep(2 * time.Second)
	for i := range replicas {
		end(replicas[i])
		replicas[i] = start(i)
		time.Sleep(time.Second)
	}
	time.Sleep(time.Second)
	hold(t, 500, 2, all...)
	end(replicas[0])
	replicas[1].Kill()
	replicas[1].stop()
	time.Sleep(2 * time.Second)
	hold(t, 500, 2, replicas[2].Vertex)
	replicas[2].stop()
	atMost(t, 500, from, all...)
}

// TestPermitStoreUnavailable: while Redis is unavailable, the source continues at the limit and can
// be stopped. Its return causes no burst.
func TestPermitStoreUnavailable(t *testing.T) {
	t.Parallel()
	redis := services.RedisServer(t)
	v := newScene(t, "messageRate: 200/s", redis.URL).start("source", 0)
	from := time.Now()
	stop := v.Source(usual)
	loosely.Hold(t, func(loose assert.TestingT) {
		time.Sleep(3 * time.Second)
		redis.Kill()
		killed := time.Now()
		time.Sleep(4 * time.Second)
		redis.Start()
		assert.GreaterOrEqual(loose, between(killed, killed.Add(4*time.Second), v), 600)
	})
	time.Sleep(3 * time.Second)
	atMost(t, 200, from, v)
	redis.Kill()
	stop()
	assert.Less(t, v.Stop(), 5*time.Second)
}

// TestRamp: a new replica continues the ramp of its predecessor.
func TestRamp(t *testing.T) {
	t.Parallel()
	loosely.Hold(t, func(loose assert.TestingT) {
		s := newScene(t, "messageRate: 1000/s, ramp: {from: 50/s, over: 10s}", "")
		first := s.start("source", 0)
		from := time.Now()
		stop := first.Source(usual)
		time.Sleep(5 * time.Second)
		require.Less(t, between(from, from.Add(time.Second), first), 200)
		stop()
		assert.Less(t, first.Stop(), 5*time.Second)
		second := s.start("source", 0)
		from = time.Now()
		defer second.Source(usual)()
		time.Sleep(1500 * time.Millisecond)
		n := between(from.Add(500*time.Millisecond), from.Add(1500*time.Millisecond), second)
		assert.Greater(loose, n, 400)
	})
}

// TestPermitStoreAbsent: if the permit store is unavailable at the start, the source delivers
// nothing, or runs at a hundredth of the limit or less, as its onOutage says.
func TestPermitStoreAbsent(t *testing.T) {
	t.Parallel()
	for loss, messages := range map[string]struct{ min, max int }{"stop": {0, 0}, "share": {1, 20}} {
		t.Run(loss, func(t *testing.T) {
			t.Parallel()
			redis := services.RedisServer(t)
			redis.Kill()
			v := newScene(t, "messageRate: 100/s, onOutage: "+loss, redis.URL).start("source", 0)
			stop := v.Source(usual)
			time.Sleep(3 * time.Second)
			n := len(v.Arrivals())
			assert.GreaterOrEqual(t, n, messages.min)
			assert.LessOrEqual(t, n, messages.max)
			redis.Start()
			back := time.Now()
			require.Eventually(t, func() bool {
				return between(back, time.Now(), v) > 50
			}, 15*time.Second, 10*time.Millisecond)
			hold(t, 100, 2, v)
			stop()
			assert.Less(t, v.Stop(), 5*time.Second)
		})
	}
}

// nacks makes a vertex answer with nacks.
const nacks = "VERTEX_NACKS=1"

// TestStopWhileWaiting: a stop takes at most five seconds, even if data wait for permits that would
// take minutes. Each datum is answered.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ kind, env string }{
		"sink": {"sink", ""}, "sink that nacks": {"sink", nacks},
		"map that nacks": {"map", nacks}, "batch map that nacks": {"batchmap", nacks},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, "messageRate: 1/s", "")
			s.env = append(s.env, c.env)
			v := s.start(c.kind, 0)
			v.MayEnd()
			var stop func()
			if b := (dataplane.Batch{Size: 200}); c.kind == "sink" {
				stop = v.Sink(b)
			} else {
				stop = v.Map(b, func(int) []string { return nil })
			}
			time.Sleep(time.Second)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				stop()
			}()
			took := v.Stop()
			<-answered
			assert.Less(t, took, 5500*time.Millisecond)
			assert.Greater(t, took, 3*time.Second, "data whose permits come in time are handled")
			assert.Equal(t, 200, len(v.Arrivals())+v.Refused()+v.Failures())
			assert.Equal(t, c.env == nacks, v.Refused() > 0)
		})
	}
}

// TestSinkContainerStops: when only the sink's container ends, redeliveries are bounded by the
// limit, even if the source redelivers at once.
func TestSinkContainerStops(t *testing.T) {
	t.Parallel()
	for _, env := range []string{"", nacks} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, "messageRate: 50/s", "")
			s.env = append(s.env, env)
			v := s.start("sink", 0)
			stop := v.Sink(dataplane.Batch{Size: 500, IgnoresDelay: true})
			time.Sleep(time.Second)
			v.Terminate()
			before := v.Delivered()
			time.Sleep(9 * time.Second)
			again := v.Delivered() - before
			t.Logf("%d messages were read in 9 s", again)
			assert.LessOrEqual(t, again, 50*9+500, "the limit plus a batch")
			assert.LessOrEqual(t, float64(len(v.Arrivals())), 50*10.25+1)
			v.Kill()
			stop()
		})
	}
}

// TestDataPlaneReplaced: messages that a data plane had read when it died are nacked to the user's
// source, which delivers them to the next data plane.
func TestDataPlaneReplaced(t *testing.T) {
	t.Parallel()
	v := newScene(t, "messageRate: 100/s", "").start("source", 0)
	v.DieAfterRead(dataplane.Batch{Size: 20, Timeout: time.Second})
	stop := v.Source(usual)
	require.Eventually(t, func() bool {
		return len(v.Arrivals()) >= 150
	}, 10*time.Second, 10*time.Millisecond)
	stop()
	assert.Less(t, v.Stop(), 5*time.Second)
	again := v.Values()[20:]
	for _, value := range v.Values()[:20] {
		assert.Contains(t, again, value)
	}
}
