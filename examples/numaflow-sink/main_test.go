package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/tests/numaflow/dataplane"
)

// TestSink posts at the limit, and what the service was too busy for comes again when it said so.
func TestSink(t *testing.T) {
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

	env := append(dataplane.Env(t, "messageRate: 50/s", "memory:"), "NUMAFLOW_REPLICA=0", "SINK_URL="+service.URL)
	v := dataplane.Start(t, dataplane.Sink, env, dataplane.Build(t, "."))
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
