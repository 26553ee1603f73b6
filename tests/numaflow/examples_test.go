package numaflow_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestKafkaSource: examples/numaflow-source hands over all of a topic at the limit; what a data plane that died had read comes
// again, and a restart goes on where it was acknowledged.
func TestKafkaSource(t *testing.T) {
	t.Parallel()
	const messages = 600
	k := services.Kafka(t)
	topic := services.Name(t)
	k.CreateTopic(topic, 2)
	w := &kafka.Writer{Addr: kafka.TCP(k.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond}
	var all []kafka.Message
	var want []string
	for i := range messages {
		all, want = append(all, kafka.Message{Value: fmt.Append(nil, i)}), append(want, fmt.Sprint(i))
	}
	require.NoError(t, w.WriteMessages(t.Context(), all...))
	require.NoError(t, w.Close())

	s := newScene(t, "messageRate: 100/s, throttleCaughtUp: true", "")
	s.env = append(s.env, "NUMAFLOW_REPLICA=0", "KAFKA_BROKERS="+strings.Join(k.Brokers, ","), "KAFKA_TOPIC="+topic, "KAFKA_GROUP="+topic)
	run := func() *dataplane.Vertex {
		return dataplane.Start(t, dataplane.Source, s.env, filepath.Join(binaries, "numaflow-source"))
	}
	v := run()
	var read []string
	for range 30 { // the first join of a group takes its time
		v.DieAfterRead(dataplane.Batch{Size: 40, Timeout: time.Second})
		if read = v.Values(); len(read) > 0 {
			break
		}
	}
	require.NotEmpty(t, read)
	from := time.Now()
	stop := v.Source(dataplane.Batch{Size: 50, Timeout: time.Second})
	require.Eventually(t, func() bool { return len(v.Values()) >= len(read)+250 }, 30*time.Second, 10*time.Millisecond)
	assert.LessOrEqual(t, window(time.Second, from, v), 126)
	stop()
	assert.Less(t, v.Stop(), 15*time.Second)
	first := v.Values()
	for _, value := range read {
		assert.Contains(t, first[len(read):], value, "it comes again")
	}

	v = run()
	stop = v.Source(dataplane.Batch{Size: 50, Timeout: time.Second})
	require.Eventually(t, func() bool { return len(v.Values()) >= messages-(len(first)-len(read)) }, 60*time.Second, 10*time.Millisecond)
	time.Sleep(time.Second) // nothing else comes
	stop()
	v.Stop()
	got := append(slices.Clone(first[len(read):]), v.Values()...)
	assert.ElementsMatch(t, want, got)
}

// TestHTTPSink: examples/numaflow-sink posts at the limit, and what the service was too busy for comes again when it said so.
func TestHTTPSink(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	refused, posted := map[string]time.Time{}, map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		id := string(body)
		mu.Lock()
		defer mu.Unlock()
		at, again := refused[id]
		switch {
		case strings.HasSuffix(id, "7") && !again:
			refused[id] = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case again && time.Since(at) < time.Second:
			w.WriteHeader(http.StatusTeapot) // the data plane fails the test
		default:
			posted[id]++
		}
	}))
	defer service.Close()

	s := newScene(t, "messageRate: 50/s", "")
	s.env = append(s.env, "NUMAFLOW_REPLICA=0", "SINK_URL="+service.URL)
	v := dataplane.Start(t, dataplane.Sink, s.env, filepath.Join(binaries, "numaflow-sink"))
	from := time.Now()
	stop := v.Sink(dataplane.Batch{Size: 20})
	time.Sleep(5 * time.Second)
	stop()
	took := time.Since(from).Seconds()
	assert.Less(t, v.Stop(), 5*time.Second)
	mu.Lock()
	defer mu.Unlock()
	n := len(posted) + len(refused)
	assert.LessOrEqual(t, float64(n), 50*(took+0.25)+1+float64(v.Refused()))
	assert.GreaterOrEqual(t, float64(len(posted)), 0.9*50*took-20-float64(len(refused)))
	assert.NotZero(t, v.Refused())
	assert.GreaterOrEqual(t, posted["7"], 1, "it came again")
	for id, times := range posted {
		assert.Equal(t, 1, times, "datum %s", id)
	}
}
