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
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestSink(t *testing.T) {
	binary := dataplane.Build(t, ".")
	t.Run("at the limit", func(t *testing.T) { t.Parallel(); atTheLimit(t, binary) })
	t.Run("nothing lost", func(t *testing.T) { t.Parallel(); nothingLost(t, binary) })
	t.Run("busy", func(t *testing.T) { t.Parallel(); ofABusyService(t, binary) })
}

// atTheLimit posts there, and what the service was too busy for comes again when it said so.
func atTheLimit(t *testing.T, binary string) {
	var mu sync.Mutex
	refused, posted := map[string]time.Time{}, map[string]int{}
	calls := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		id := string(body)
		mu.Lock()
		defer mu.Unlock()
		calls++
		at, again := refused[id]
		switch {
		case strings.HasSuffix(id, "7") && !again:
			refused[id] = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case again && time.Since(at) < time.Second:
			w.WriteHeader(http.StatusTeapot) // a failure
		default:
			posted[id]++
		}
	}))
	defer service.Close()

	env := append(dataplane.Env(t, "messageRate: 50/s, busy: {tolerance: 0.5}", "memory:"),
		"NUMAFLOW_REPLICA=0", "SINK_URL="+service.URL)
	v := dataplane.Start(t, dataplane.Sink, env, binary)
	from := time.Now()
	stop := v.Sink(dataplane.Batch{Size: 100})
	assert.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(posted) >= 150 && posted["7"] > 0
	}, throttletest.Patience, 10*time.Millisecond, "what was refused comes again, and the rest goes on")
	stop()
	took := time.Since(from).Seconds()
	v.Stop()
	mu.Lock()
	defer mu.Unlock()
	assert.LessOrEqual(t, float64(calls), 50*(took+0.25)+1)
	assert.Zero(t, v.Refused(), "nacks")
	assert.Zero(t, v.Failures())
	for id, times := range posted {
		assert.Equal(t, 1, times, "datum %s", id)
	}
}

// nothingLost: with the retryStrategy of monovertex.yaml, whose source ignores nacks, each
// message arrives that the service answered with a 429.
func nothingLost(t *testing.T, binary string) {
	const messages = 64
	var mu sync.Mutex
	calls, posted := map[string]int{}, map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if calls[string(body)]++; calls[string(body)] == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		posted[string(body)]++
	}))
	defer service.Close()

	env := append(dataplane.Env(t, "messageRate: 50/s, busy: {minRate: 10}", "memory:"),
		"NUMAFLOW_REPLICA=0", "SINK_URL="+service.URL)
	v := dataplane.Start(t, dataplane.Sink, env, binary)
	stop := v.Sink(dataplane.Batch{
		Size: 100, Messages: messages, IgnoresNacks: true,
		Retry: dataplane.Retry{Interval: time.Second, Steps: 5, Drop: true},
	})
	assert.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(posted) == messages
	}, throttletest.Patience, 20*time.Millisecond)
	stop()
	v.Stop()
	assert.Zero(t, v.Lost())
	mu.Lock()
	defer mu.Unlock()
	for id, times := range posted {
		assert.Equal(t, 1, times, "datum %s", id)
	}
}

// ofABusyService: the sink slows down to what it can do, here 20 a second of the 200 that the
// policy allows.
func ofABusyService(t *testing.T, binary string) {
	var mu sync.Mutex
	saved, at := 2., time.Now()
	ok, busy := 0, 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		saved = min(2, saved+20*now.Sub(at).Seconds())
		at = now
		if saved < 1 {
			busy++
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		saved--
		ok++
	}))
	defer service.Close()

	env := append(dataplane.Env(t, "messageRate: 200/s", "memory:"), "NUMAFLOW_REPLICA=0", "SINK_URL="+service.URL)
	v := dataplane.Start(t, dataplane.Sink, env, binary)
	stop := v.Sink(dataplane.Batch{Size: 200})
	assert.Eventually(t, func() bool { // nine in ten are busy without reports
		mu.Lock()
		defer mu.Unlock()
		slower := ok >= 20 && busy <= ok
		if ok+busy >= 40 {
			ok, busy = 0, 0
		}
		return slower
	}, throttletest.Patience, time.Millisecond)
	stop()
	v.Stop()
}
