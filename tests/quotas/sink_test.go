package quotas_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// The headers of a POST to the sink.
const (
	idHeader       = "Throttling-Id"
	consumerHeader = "Consumer"
)

const (
	capacity = 200 // requests a second that the sink can do
	queueFor = 100 * time.Millisecond
	service  = 3 * time.Millisecond
)

// A sink is an HTTP service that starts capacity requests a second, one after the other. Requests
// for the next 100 ms wait in its queue; it answers all others 429 at once.
type sink struct {
	url string

	mu       sync.Mutex
	capacity float64
	next     time.Time // when it can start the next request
	answers  []answer  // in the order in which they were decided
	reported int       // number of answers reported to the ratekeeper
}

type answer struct {
	at       time.Time
	id       quota.ID
	consumer string
	ok       bool
}

func newSink(t *testing.T) *sink {
	s := &sink{capacity: capacity}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.post)
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(s.load(time.Now())) // a failure means that the client is gone
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *sink) post(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	wait, ok := s.admit(time.Now(), quota.ID(r.Header.Get(idHeader)), r.Header.Get(consumerHeader))
	if !ok {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	time.Sleep(wait + service)
}

func (s *sink) admit(now time.Time, id quota.ID, consumer string) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next.Before(now) {
		s.next = now
	}
	wait = s.next.Sub(now)
	if ok = wait <= queueFor; ok {
		s.next = s.next.Add(time.Duration(float64(time.Second) / s.capacity))
	}
	s.answers = append(s.answers, answer{now, id, consumer, ok})
	return wait, ok
}

func (s *sink) setCapacity(capacity float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.capacity = capacity
}

// offered is the time over which requests are counted for the load.
const offered = time.Second

// load returns the sink's load: all requests, answered well or busy, against its capacity. Its
// spring is two fifths of the capacity. With a quarter, the rates of ids would react twice as
// strongly and swing, since reports are two to four seconds old when the rates are in force.
func (s *sink) load(now time.Time) quota.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for i := len(s.answers) - 1; i >= 0 && s.answers[i].at.After(now.Add(-offered)); i-- {
		n++
	}
	return quota.Load{Queue: float64(n) / offered.Seconds(), Target: s.capacity, Spring: s.capacity * 2 / 5}
}

// costs returns the cost of each id since the last call, in bytes a second. A POST is a write of
// less than a page. A busy answer has the same cost, since it used a permit: if it were free, the
// average would fall and rates would rise while the sink is busy.
func (s *sink) costs(d time.Duration) map[quota.ID]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	costs := map[quota.ID]float64{}
	for _, a := range s.answers[s.reported:] {
		costs[a.id] += float64(quota.WriteCost(size)) / d.Seconds()
	}
	s.reported = len(s.answers)
	return costs
}

// report sends the costs of ids and the sink's load to the ratekeeper each second, until ctx ends.
func (s *sink) report(ctx context.Context, t *testing.T, url, token string) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		text, err := json.Marshal(quota.Report{
			Backend: "sink", Zone: "sink", Load: s.load(now), Costs: s.costs(now.Sub(last)),
			Time: float64(now.UnixMicro()) / 1e6,
		})
		last = now
		if assert.NoError(t, err) {
			err = post(ctx, url, token, text)
		}
		if ctx.Err() == nil {
			assert.NoError(t, err)
		}
	}
}

func post(ctx context.Context, url, token string, text []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return err
}

// A count has the numbers of a sink's answers in some time.
type count struct {
	ok   map[quota.ID]int // good answers by id
	good int
	busy int
}

func (s *sink) count(from, to time.Time) count {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := count{ok: map[quota.ID]int{}}
	for _, a := range s.answers {
		switch {
		case a.at.Before(from) || !a.at.Before(to):
		case a.ok:
			c.ok[a.id]++
			c.good++
		default:
			c.busy++
		}
	}
	return c
}

// busyShare returns the part of the answers that are busy.
func (c count) busyShare() float64 { return float64(c.busy) / float64(max(1, c.good+c.busy)) }

// fewest returns the lowest number of good answers of an id in any window of this length within
// [from, to). It tries the windows that start at from and just after each answer.
func (s *sink) fewest(id quota.ID, window time.Duration, from, to time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var at []time.Time
	for _, a := range s.answers {
		if a.ok && a.id == id && !a.at.Before(from) && a.at.Before(to) {
			at = append(at, a.at)
		}
	}
	fewest, first := len(at), 0
	for i, start := range append([]time.Time{from}, at...) { // i answers came at start or before
		if start.Add(window).After(to) {
			break
		}
		for first < len(at) && !at[first].After(start.Add(window)) {
			first++
		}
		fewest = min(fewest, first-i)
	}
	return fewest
}

// consumers returns the names of the consumers that have posted.
func (s *sink) consumers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, a := range s.answers {
		seen[a.consumer] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestSink: the sink serves its capacity and no more, however many requests come.
func TestSink(t *testing.T) {
	s, from := &sink{capacity: capacity}, time.Now()
	now := from
	for range 10_000 { // ten times its capacity for 5 s
		s.admit(now, "tenant:a", "")
		now = now.Add(500 * time.Microsecond)
	}
	c := s.count(from, now)
	assert.InDelta(t, 5*capacity+capacity/10, c.good, 1, "its capacity and its queue")
	assert.InDelta(t, 0.9, c.busyShare(), 0.01)
	assert.InDelta(t, capacity, s.fewest("tenant:a", time.Second, from, now), 2)
	assert.InDelta(t, 2000, s.load(now).Queue, 2)
}
