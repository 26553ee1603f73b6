// Package quotas_test tests throughput quotas and busy answers end to end: consumer processes on a
// real Kafka, an HTTP service that answers 429 above its capacity, policies in etcd, permits in
// Redis, and ratekeepers that are killed and suspended.
package quotas_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// Each of these variables makes this test binary another process, described by its value as JSON.
const (
	consumerEnv = "THROTTLE_TEST_QUOTA_CONSUMER"
	replicaEnv  = "THROTTLE_TEST_QUOTA_REPLICA"
)

// admin is the file name of a throttle-admin that was built for these tests.
var admin string

// TestMain runs the tests, or another process.
func TestMain(m *testing.M) {
	type process interface{ run() error }
	for name, process := range map[string]process{consumerEnv: &consumer{}, replicaEnv: &pageReader{}} {
		if text := os.Getenv(name); text != "" {
			err := json.Unmarshal([]byte(text), process)
			if err == nil {
				err = process.run()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	_ = flag.Set("test.parallel", "6") // they mostly wait
	directory, err := os.MkdirTemp("", "quotas")
	if err == nil {
		admin = filepath.Join(directory, "throttle-admin")
		build := exec.Command("go", "build", "-o", admin, "../../cmd/throttle-admin")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(directory)
	os.Exit(code)
}

// as returns the environment of another process.
func (w *deployment) as(name string, process any) []string {
	text, err := json.Marshal(process)
	require.NoError(w.t, err)
	return append(w.env(), name+"="+string(text))
}

// A deployment has a policy store and a permit store.
type deployment struct {
	t                                *testing.T
	policiesURL, permitsURL, cluster string
	permits                          dispatch.PermitStore
}

func newDeployment(t *testing.T) *deployment {
	w := &deployment{
		t: t, policiesURL: services.EtcdURL(t), permitsURL: services.Redis(t), cluster: services.Name(t),
	}
	var err error
	w.permits, err = throttle.OpenPermits(w.permitsURL)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.permits.Close()) })
	return w
}

func (w *deployment) env() []string {
	return []string{
		throttle.EnvPolicies + "=" + w.policiesURL,
		throttle.EnvPermits + "=" + w.permitsURL,
		throttle.EnvCluster + "=" + w.cluster,
	}
}

// set sets policies by scope.
func (w *deployment) set(of map[policy.Scope]policy.Settings) {
	w.t.Helper()
	store, err := throttle.OpenPolicies(w.t.Context(), w.policiesURL)
	require.NoError(w.t, err)
	setAll := func(s configstore.Snapshot) (changes []configstore.Change, _ error) {
		for scope, settings := range of {
			changes = append(changes, s.Set(scope, settings)...)
		}
		return changes, nil
	}
	_, err = configstore.Edit(w.t.Context(), store, setAll)
	require.NoError(w.t, err)
	require.NoError(w.t, store.Close())
}

// admin runs throttle-admin and returns its output.
func (w *deployment) admin(args ...string) string {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), admin, args...)
	cmd.Env = append(os.Environ(), w.env()...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(w.t, err, "%s %s", args, &stderr)
	return string(out)
}

// rates returns the rate of acme that is in force.
func (w *deployment) rates() quota.Rates {
	r, _, err := dispatch.Rates(w.t.Context(), w.permits, w.cluster, []quota.ID{quota.ID(acme.String())})
	require.NoError(w.t, err)
	return r
}

const (
	size       = 100 // bytes of a message
	partitions = 4
	// cost of a message, which is read from Kafka and written to the sink
	cost = quota.Page + quota.WriteFactor*quota.Page
)

// long skips a test that takes over a minute, unless THROTTLE_LONG is set, as by make test-long.
func long(t *testing.T) {
	if !permitstest.Long() {
		t.Skip("takes over a minute: set THROTTLE_LONG")
	}
}

func TestTenantsShareASink(t *testing.T) {
	long(t)
	w := newDeployment(t)
	share(w, newSink(t), func(c *consumer, name string) policy.Scope {
		c.Namespace, c.Meter, c.Keeps = name+"/default", true, true
		return policy.TenantScope(name)
	})
}

func TestTagsShareASink(t *testing.T) {
	long(t)
	w, s := newDeployment(t), newSink(t)
	k := w.startKeeper("keeper")
	ctx, cancel := context.WithCancel(t.Context())
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		s.report(ctx, t, k.url, k.token)
	}()
	defer func() { cancel(); <-reported }()
	share(w, s, func(c *consumer, name string) policy.Scope {
		c.Namespace, c.Tag = "public/default", name
		return policy.TagScope(name)
	})
}

// share runs two ids, a and b, on the sink, with two processes each. A fifth of the sink is
// reserved for each id, and each may use all of it. First, a wants 40 % and b has an endless
// backlog; then both have one; then the capacity of the sink doubles, so that it equals the sum of
// both totals.
func share(w *deployment, s *sink, of func(c *consumer, name string) policy.Scope) {
	t := w.t
	k := services.Kafka(t)
	quotas := map[policy.Scope]policy.Settings{
		policy.ClusterScope(): policy.QuotaSettings{IgnoreZones: new(int64(0))}, // there is one zone
	}
	var ids []quota.ID
	topics := map[string]string{}
	base := consumer{Brokers: k.Brokers, Group: services.Name(t), Sink: s.url}
	processes := []consumer{}
	for _, name := range []string{"a", "b"} {
		c := base
		scope := of(&c, name)
		topics[name] = services.Name(t) + "-" + name
		c.ID, c.Topic = quota.ID(scope.String()), topics[name]
		k.CreateTopic(c.Topic, partitions)
		quotas[scope] = policy.Quota{
			Reserved: new(int64(capacity * cost / 5)), Total: new(int64(capacity * cost)),
		}
		ids = append(ids, c.ID)
		for i := range 2 {
			c.Name = fmt.Sprint(name, i)
			processes = append(processes, c)
		}
	}
	w.set(quotas)
	w.produce(k.Brokers, topics["b"], 30_000) // more than b can read in this test
	written, stop := w.producing(k.Brokers, topics["a"], capacity*40/100)
	for i, c := range processes {
		fleet.Start(t, i, "", w.as(consumerEnv, c))
	}
	require.Eventually(t, func() bool {
		return len(s.consumers()) == len(processes)
	}, time.Minute, 50*time.Millisecond, "a process has no partition")
	defer w.explain(s, time.Now(), ids)

	const window = 2 * time.Second
	check := func(what string, more func(assert.TestingT, count)) {
		// After a pause of the machine, the requests that arrive at once exceed the sink's queue.
		loosely.Hold(t, func(loose assert.TestingT) {
			const d = 10 * time.Second
			from := time.Now()
			time.Sleep(d)
			c := s.count(from, from.Add(d))
			n := float64(c.good) / d.Seconds() / capacity
			t.Logf("%s: %.1f %% of the capacity, %.2f %% of the answers busy, %v; longest gap %v",
				what, 100*n, 100*c.busyShare(), c.ok, s.gap(from))
			assert.GreaterOrEqual(loose, n, 0.9, what)
			assert.LessOrEqual(loose, c.busyShare(), 0.05, what)
			for _, id := range ids {
				assert.GreaterOrEqual(loose, s.fewest(id, window, from, from.Add(d)),
					int(capacity*window.Seconds()/5), "%s: reserved for %s, in any %v", what, id, window)
			}
			more(loose, c)
		})
	}
	time.Sleep(15 * time.Second)
	caughtUp := func() bool {
		return written.Load()-int64(s.count(time.Time{}, time.Now()).ok[ids[0]]) < capacity/10
	}
	require.Eventually(t, caughtUp, 30*time.Second, 100*time.Millisecond, "a has not caught up after its start")
	settled := time.Now()
	check("a wants 40 %", func(loose assert.TestingT, c count) {
		assert.InEpsilon(loose, capacity*40/100*10, c.ok[ids[0]], 0.1, "%s gets what it wants", ids[0])
	})
	stop()
	w.produce(k.Brokers, topics["a"], 20_000)
	time.Sleep(8 * time.Second)
	check("both want everything", func(assert.TestingT, count) {})

	try := 0
	loosely.Hold(t, func(loose assert.TestingT) {
		const d = 2 * time.Second
		if try++; try > 1 {
			s.setCapacity(capacity)
			time.Sleep(15 * time.Second)
		}
		s.setCapacity(2 * capacity)
		time.Sleep(10 * time.Second)
		from := time.Now()
		time.Sleep(d)
		regained := float64(s.count(from, from.Add(d)).good) / d.Seconds() / 2 / capacity
		t.Logf("%.1f %% of the doubled capacity after 10 s; longest gap %v", 100*regained, s.gap(from))
		assert.GreaterOrEqual(loose, regained, 0.95, "of the doubled capacity")
	})
	for _, id := range ids { // also while demand and capacity change
		assert.GreaterOrEqual(t, s.fewest(id, 2*window, settled, time.Now()),
			int(capacity*window.Seconds()/5), "half of the rate reserved for %s, in any %v", id, 2*window)
	}
}

// explain logs the answers of each second and the ratekeeper's status, if the test has failed.
func (w *deployment) explain(s *sink, from time.Time, ids []quota.ID) {
	if !w.t.Failed() {
		return
	}
	for at := from; at.Before(time.Now()); at = at.Add(time.Second) {
		c := s.count(at, at.Add(time.Second))
		w.t.Logf("%2.0f s: a %3d, b %3d, busy %3d", at.Sub(from).Seconds(), c.ok[ids[0]], c.ok[ids[1]], c.busy)
	}
	w.t.Log(w.admin("quota", "status"))
}

func (w *deployment) writer(brokers []string, topic string) *kafka.Writer {
	return &kafka.Writer{
		Addr: kafka.TCP(brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.RoundRobin{}, BatchTimeout: 5 * time.Millisecond,
	}
}

func message() kafka.Message { return kafka.Message{Value: bytes.Repeat([]byte{'x'}, size)} }

// produce writes n messages to a topic.
func (w *deployment) produce(brokers []string, topic string, n int) {
	w.t.Helper()
	to := w.writer(brokers, topic)
	messages := make([]kafka.Message, n)
	for i := range messages {
		messages[i] = message()
	}
	require.NoError(w.t, to.WriteMessages(w.t.Context(), messages...))
	require.NoError(w.t, to.Close())
}

// producing writes rate messages a second to a topic until stop is called, and counts them in n.
func (w *deployment) producing(
	brokers []string, topic string, rate float64,
) (n *atomic.Int64, stop func()) {
	n = new(atomic.Int64)
	to := w.writer(brokers, topic)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for start := time.Now(); ctx.Err() == nil; {
			time.Sleep(50 * time.Millisecond)
			var messages []kafka.Message
			for want := time.Since(start).Seconds() * rate; float64(n.Load()) < want; n.Add(1) {
				messages = append(messages, message())
			}
			if err := to.WriteMessages(ctx, messages...); err != nil && ctx.Err() == nil {
				assert.NoError(w.t, err)
			}
		}
	}()
	stop = func() { cancel(); <-done }
	w.t.Cleanup(func() { stop(); assert.NoError(w.t, to.Close()) })
	return n, stop
}
