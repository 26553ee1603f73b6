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
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
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

func newDeployment(t *testing.T, permitsURL string) *deployment {
	w := &deployment{
		t: t, policiesURL: services.EtcdURL(t), permitsURL: permitsURL, cluster: services.Name(t),
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
func (w *deployment) set(entries map[policy.Scope]policy.Settings) {
	w.t.Helper()
	store, err := throttle.OpenPolicies(w.t.Context(), w.policiesURL)
	require.NoError(w.t, err)
	setAll := func(s configstore.Snapshot) (changes []configstore.Change, _ error) {
		for scope, settings := range entries {
			changes = append(changes, s.Set(scope, settings)...)
		}
		return changes, nil
	}
	_, err = configstore.Edit(w.t.Context(), store, configstore.By{}, setAll)
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
