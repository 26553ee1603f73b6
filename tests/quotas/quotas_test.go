// Package quotas_test tests throughput quotas and busy answers end to end: consumer processes on
// a real Kafka, an HTTP service that answers 429 above its capacity, policies in etcd, permits in
// Redis, and ratekeepers that are killed and stopped.
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
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// Each variable makes this test binary another process, configured by its value as JSON.
const (
	consumerEnv = "THROTTLE_TEST_QUOTA_CONSUMER"
	readerEnv   = "THROTTLE_TEST_QUOTA_READER"
)

// admin is the path of throttle-admin, built for these tests.
var admin string

// TestMain is also the main function of the other processes.
func TestMain(m *testing.M) {
	for name, process := range map[string]interface{ run() error }{consumerEnv: &consumer{}, readerEnv: &pagesReader{}} {
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
	_ = os.RemoveAll(directory) // in the temporary folder
	os.Exit(code)
}

// as returns the environment of such a process.
func (dep *deployment) as(name string, process any) []string {
	text, err := json.Marshal(process)
	require.NoError(dep.t, err)
	return append(dep.env(), name+"="+string(text))
}

// A deployment is a cluster with its policy store and permit store.
type deployment struct {
	t                                *testing.T
	policiesURL, permitsURL, cluster string
	permits                          dispatch.PermitStore
}

func newDeployment(t *testing.T) *deployment {
	dep := &deployment{t: t, policiesURL: services.EtcdURL(t), permitsURL: services.Redis(t), cluster: services.Name(t)}
	var err error
	dep.permits, err = throttle.OpenPermits(dep.permitsURL)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dep.permits.Close()) })
	return dep
}

func (dep *deployment) env() []string {
	return []string{throttle.EnvPolicies + "=" + dep.policiesURL, throttle.EnvPermits + "=" + dep.permitsURL, throttle.EnvCluster + "=" + dep.cluster}
}

// set sets fields of policies.
func (dep *deployment) set(of map[policy.Scope]policy.Policy) {
	dep.t.Helper()
	store, err := throttle.OpenPolicies(dep.t.Context(), dep.policiesURL)
	require.NoError(dep.t, err)
	_, err = configstore.Edit(dep.t.Context(), store, func(s configstore.Snapshot) (changes []configstore.Change, _ error) {
		for scope, p := range of {
			changes = append(changes, s.Set(scope, p)...)
		}
		return changes, nil
	})
	require.NoError(dep.t, err)
	require.NoError(dep.t, store.Close())
}

// admin runs throttle-admin, and returns its output.
func (dep *deployment) admin(args ...string) string {
	dep.t.Helper()
	cmd := exec.CommandContext(dep.t.Context(), admin, args...)
	cmd.Env = append(os.Environ(), dep.env()...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(dep.t, err, "%s %s", args, &stderr)
	return string(out)
}

// rates returns the record that replicas apply.
func (dep *deployment) rates() (r dispatch.Rates) {
	text, _, err := dep.permits.Value(dep.t.Context(), permits.RatesKey(dep.cluster))
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &r)
	}
	require.NoError(dep.t, err)
	return r
}

const (
	size       = 100 // bytes of a message
	partitions = 4
	// The cost of a message: it is read from Kafka, and written to the sink.
	cost = quota.Page + quota.WriteFactor*quota.Page
)

// long skips a test that takes over a minute; make test-long runs it.
func long(t *testing.T) {
	if !permitstest.Long() {
		t.Skip("takes over a minute: set THROTTLE_LONG")
	}
}

func TestTenantsShareASink(t *testing.T) {
	long(t)
	dep := newDeployment(t)
	share(dep, newSink(t), func(c *consumer, name string) policy.Scope {
		c.Namespace, c.Meter, c.Keeps = name+"/default", true, true
		return policy.TenantScope(name)
	})
}

func TestTagsShareASink(t *testing.T) {
	long(t)
	dep, s := newDeployment(t), newSink(t)
	k := dep.startKeeper("keeper")
	ctx, cancel := context.WithCancel(t.Context())
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		s.report(ctx, t, k.url, k.token)
	}()
	defer func() { cancel(); <-reported }()
	share(dep, s, func(c *consumer, name string) policy.Scope {
		c.Namespace, c.Tag = "public/default", name
		return policy.TagScope(name)
	})
}

// share lets a and b share the sink, with two processes each: 20 % of it is reserved for each, and
// each may use all of it. First a needs 40 % and b has an endless backlog; then both have one; then
// the capacity of the sink doubles, so that their totals are the limit.
func share(dep *deployment, s *sink, of func(c *consumer, name string) policy.Scope) {
	t := dep.t
	k := services.Kafka(t)
	// The sink is the only zone, which must not be ignored.
	quotas := map[policy.Scope]policy.Policy{policy.ClusterScope(): {IgnoreZones: new(int64(0))}}
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
		quotas[scope] = policy.Policy{ReservedThroughput: new(int64(capacity * cost / 5)), TotalThroughput: new(int64(capacity * cost))}
		ids = append(ids, c.ID)
		for i := range 2 {
			c.Name = fmt.Sprint(name, i)
			processes = append(processes, c)
		}
	}
	dep.set(quotas)
	dep.produce(k.Brokers, topics["b"], 30_000) // more than b can read
	written, stop := dep.producing(k.Brokers, topics["a"], capacity*40/100)
	for i, c := range processes {
		fleet.Start(t, i, "", dep.as(consumerEnv, c))
	}
	require.Eventually(t, func() bool { return len(s.consumers()) == len(processes) }, time.Minute, 50*time.Millisecond, "a process got no partition to read from")
	defer dep.explain(s, time.Now(), ids)

	const window = 2 * time.Second
	check := func(what string, more func(assert.TestingT, count)) {
		// After a pause of the machine, requests overflow the sink's queue.
		loosely.Hold(t, func(loose assert.TestingT) {
			const d = 10 * time.Second
			from := time.Now()
			time.Sleep(d)
			c := s.count(from, from.Add(d))
			n := float64(c.good) / d.Seconds() / capacity
			t.Logf("%s: %.1f %% of the capacity, %.2f %% of the answers busy, %v; longest gap %v", what, 100*n, 100*c.busyShare(), c.ok, s.gap(from))
			assert.GreaterOrEqual(loose, n, 0.9, what)
			assert.LessOrEqual(loose, c.busyShare(), 0.05, what)
			for _, id := range ids {
				assert.GreaterOrEqual(loose, s.least(id, window, from, from.Add(d)), int(capacity*window.Seconds()/5), "%s: the reserved throughput of %s, in any %v", what, id, window)
			}
			more(loose, c)
		})
	}
	time.Sleep(15 * time.Second)
	caughtUp := func() bool { return written.Load()-int64(s.count(time.Time{}, time.Now()).ok[ids[0]]) < capacity/10 }
	require.Eventually(t, caughtUp, 30*time.Second, 100*time.Millisecond, "a does not catch up with the messages of the time when the processes joined")
	settled := time.Now()
	check("a needs 40 %", func(loose assert.TestingT, c count) {
		assert.InEpsilon(loose, capacity*40/100*10, c.ok[ids[0]], 0.1, "%s gets what it needs, whatever the other does", ids[0])
	})
	stop()
	dep.produce(k.Brokers, topics["a"], 20_000)
	time.Sleep(8 * time.Second)
	check("both have a backlog", func(assert.TestingT, count) {})

	try := 0
	loosely.Hold(t, func(loose assert.TestingT) {
		const d = 2 * time.Second
		if try++; try > 1 {
			s.can(capacity)
			time.Sleep(15 * time.Second)
		}
		s.can(2 * capacity)
		time.Sleep(10 * time.Second)
		from := time.Now()
		time.Sleep(d)
		regained := float64(s.count(from, from.Add(d)).good) / d.Seconds() / 2 / capacity
		t.Logf("%.1f %% of the doubled capacity, 10 s after the change; longest gap %v", 100*regained, s.gap(from))
		assert.GreaterOrEqual(loose, regained, 0.95, "of the doubled capacity")
	})
	for _, id := range ids { // also while demand and capacity change
		assert.GreaterOrEqual(t, s.least(id, 2*window, settled, time.Now()), int(capacity*window.Seconds()/5), "half of the reserved throughput of %s, in any %v", id, 2*window)
	}
}

// explain logs the counts of each second and the last decisions, if the test has failed.
func (dep *deployment) explain(s *sink, from time.Time, ids []quota.ID) {
	if !dep.t.Failed() {
		return
	}
	for at := from; at.Before(time.Now()); at = at.Add(time.Second) {
		c := s.count(at, at.Add(time.Second))
		dep.t.Logf("%2.0f s: a %3d, b %3d, busy %3d", at.Sub(from).Seconds(), c.ok[ids[0]], c.ok[ids[1]], c.busy)
	}
	dep.t.Log(dep.admin("quota", "status"))
}

func (dep *deployment) writer(brokers []string, topic string) *kafka.Writer {
	return &kafka.Writer{Addr: kafka.TCP(brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, Balancer: &kafka.RoundRobin{}, BatchTimeout: 5 * time.Millisecond}
}

func message() kafka.Message { return kafka.Message{Value: bytes.Repeat([]byte{'x'}, size)} }

// produce writes n messages to a topic.
func (dep *deployment) produce(brokers []string, topic string, n int) {
	dep.t.Helper()
	to := dep.writer(brokers, topic)
	messages := make([]kafka.Message, n)
	for i := range messages {
		messages[i] = message()
	}
	require.NoError(dep.t, to.WriteMessages(dep.t.Context(), messages...))
	require.NoError(dep.t, to.Close())
}

// producing writes messages to a topic at a rate a second, until stop, and counts them.
func (dep *deployment) producing(brokers []string, topic string, rate float64) (n *atomic.Int64, stop func()) {
	n = new(atomic.Int64)
	to := dep.writer(brokers, topic)
	ctx, cancel := context.WithCancel(dep.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for began := time.Now(); ctx.Err() == nil; {
			time.Sleep(50 * time.Millisecond)
			var messages []kafka.Message
			for want := time.Since(began).Seconds() * rate; float64(n.Load()) < want; n.Add(1) {
				messages = append(messages, message())
			}
			if err := to.WriteMessages(ctx, messages...); err != nil && ctx.Err() == nil {
				assert.NoError(dep.t, err)
			}
		}
	}()
	stop = func() { cancel(); <-done }
	dep.t.Cleanup(func() { stop(); assert.NoError(dep.t, to.Close()) })
	return n, stop
}
