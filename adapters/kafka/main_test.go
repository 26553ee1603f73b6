package kafkathrottle_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestMain fails if goroutines are left behind, after it has closed the connections that tests made
// without a Reader.
func TestMain(m *testing.M) { throttletest.Main(withoutPool{m}, goleak.Find) }

type withoutPool struct{ *testing.M }

func (m withoutPool) Run() int {
	defer kafka.DefaultTransport.(*kafka.Transport).CloseIdleConnections()
	return m.M.Run()
}

// broker starts an in-process Kafka with one topic.
func broker(t testing.TB, partitions int, topics ...string) (*kfake.Cluster, []string) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(partitions), topics...))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, c.ListenAddrs()
}

// fill writes n messages of size bytes to each partition of a topic; their values begin with
// partition/offset.
func fill(t testing.TB, brokers []string, topic string, partitions, n, size int) {
	t.Helper()
	for p := range partitions {
		values := make([]string, n)
		for i := range values {
			values[i] = fmt.Sprintf("%-*s", size, fmt.Sprintf("%d/%d", p, i))
		}
		adaptertest.Write(t, brokers, topic, p, values)
	}
}

func rate(t testing.TB, text string) policy.Rate {
	t.Helper()
	r, err := policy.ParseRate(text)
	require.NoError(t, err)
	return r
}

// fetch is FetchMessage with a timeout.
func fetch(t testing.TB, r interface {
	FetchMessage(context.Context) (kafka.Message, error)
}) kafka.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), throttletest.Patience)
	defer cancel()
	m, err := r.FetchMessage(ctx)
	require.NoError(t, err)
	return m
}

// A logger is a kafka.Logger that keeps its lines.
type logger struct {
	mu    sync.Mutex
	lines []string
}

func (l *logger) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *logger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%q", l.lines)
}
