package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
)

// A server answers the requests of browsers.
type server struct {
	ctx     context.Context // ends when the server is to end
	app     *cli.App
	reader  *cluster.Reader
	quotas  *quotaPoints
	panels  map[string]panel
	started time.Time

	cpuBefore float64        // seconds, at the start
	streams   atomic.Int64   // to browsers
	running   sync.WaitGroup // of what computes answers
	commands  chan struct{}  // has a place for each command that may run now

	mu     sync.Mutex
	shared map[string]*shared // by panel and parameters
	onView map[string]int     // streams, by the commands that they follow; likewise
}

// A panel is a part of a page, as JSON.
type panel struct {
	// every is how old an answer may be that several browsers share, and how often one that looks
	// gets a new one: if it takes long, more rarely.
	every time.Duration

	// runs says that a command shows the panel.
	runs bool

	// params are the parameters that the answer depends on.
	params []string

	// show returns the panel. With an id, which a browser returns as the parameter since, the next
	// answer has only what came later.
	show func(ctx context.Context, q url.Values) (answer any, id int64, err error)
}

// A shared answer is computed once for all browsers that ask for the same.
type shared struct {
	ready chan struct{} // closed when the others are set
	until time.Time     // it is new enough
	pace  pace
	text  []byte
	id    int64
	err   error
}

// old reports whether the answer was to be shown at most until a time.
func (a *shared) old(at time.Time) bool {
	select {
	case <-a.ready:
		return at.After(a.until)
	default:
		return false
	}
}

const (
	maxShared   = 500              // answers to different questions
	keepShared  = 5 * time.Second  // an old answer that nobody asks for
	maxCommands = 4                // that run at once
	patience    = 20 * time.Second // for a command
)

// newServer returns what the console serves until ctx ends, and a function that waits for its end.
func newServer(ctx context.Context, a *cli.App, reader *cluster.Reader, quotas *quotaPoints) (h http.Handler, wait func()) {
	s := &server{
		ctx: ctx, app: a, reader: reader, quotas: quotas, started: time.Now(), cpuBefore: cpuSeconds(),
		commands: make(chan struct{}, maxCommands), shared: map[string]*shared{}, onView: map[string]int{},
	}
	s.panels = s.allPanels()
	mux := http.NewServeMux()
	for name := range s.panels {
		mux.HandleFunc("/api/"+name, func(w http.ResponseWriter, r *http.Request) { s.once(w, r, name) })
	}
	for page, names := range pagePanels {
		mux.HandleFunc("/events/"+page, func(w http.ResponseWriter, r *http.Request) { s.stream(w, r, names) })
	}
	mux.Handle("/", pages())
	return guard(mux), s.running.Wait
}

// answer returns a panel as JSON: the one that another browser got, if that is new enough. It waits
// until there is one, or ctx ends.
func (s *server) answer(ctx context.Context, name string, q url.Values) (*shared, error) {
	p := s.panels[name]
	key, asked := s.question(name, q)
	now := time.Now()
	s.mu.Lock()
	a := s.shared[key]
	if a == nil || a.old(now) {
		s.forget(now.Add(-keepShared)) // nobody looks at them any more
		if len(s.shared) >= maxShared && !s.evict(now) {
			s.mu.Unlock()
			return nil, fmt.Errorf("browsers look at more than %d different panels: try again later", maxShared)
		}
		before := a
		a = &shared{ready: make(chan struct{})}
		if before != nil {
			a.pace = before.pace
		}
		s.shared[key] = a
		s.running.Go(func() { s.compute(a, p, asked) })
	}
	s.mu.Unlock()
	select {
	case <-a.ready:
		return a, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// question returns the parameters of a panel, and what names the panel with these.
func (s *server) question(name string, q url.Values) (key string, asked url.Values) {
	asked = url.Values{}
	for _, param := range s.panels[name].params {
		if v := q.Get(param); v != "" {
			asked.Set(param, v)
		}
	}
	return name + "?" + asked.Encode(), asked
}

// forget drops the answers that were old at a time. s.mu is held.
func (s *server) forget(at time.Time) {
	maps.DeleteFunc(s.shared, func(_ string, a *shared) bool { return a.old(at) })
}

// evict forgets the answers that are old, or else the one that will be next, and reports whether
// there was one. s.mu is held.
func (s *server) evict(now time.Time) bool {
	s.forget(now)
	if len(s.shared) < maxShared {
		return true
	}
	oldest := ""
	for key, a := range s.shared {
		if a.old(now.Add(time.Hour)) && (oldest == "" || a.until.Before(s.shared[oldest].until)) {
			oldest = key
		}
	}
	delete(s.shared, oldest)
	return oldest != ""
}

func (s *server) compute(a *shared, p panel, q url.Values) {
	defer close(a.ready)
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	start := time.Now()
	var answer any
	if answer, a.id, a.err = p.show(ctx, q); a.err == nil {
		a.text, a.err = json.Marshal(answer)
	}
	wait := p.every
	switch {
	case a.err != nil:
		wait = time.Second
	case p.runs:
		wait = min(a.pace.next(wait, time.Since(start), s.commandsOnView()), 10*patience)
	}
	a.until = time.Now().Add(wait * 9 / 10)
}

// commandsOnView returns how many commands streams follow; at least 1.
func (s *server) commandsOnView() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(1, len(s.onView))
}

// view notes that a stream follows a command until the returned function is called.
func (s *server) view(name string, q url.Values) (end func()) {
	key, _ := s.question(name, q)
	note := func(streams int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.onView[key] += streams; s.onView[key] == 0 {
			delete(s.onView, key)
		}
	}
	note(1)
	return func() { note(-1) }
}

// A badQuery is the fault of who asks.
type badQuery struct{ error }

// once answers a request with a panel.
func (s *server) once(w http.ResponseWriter, r *http.Request, name string) {
	a, err := s.answer(r.Context(), name, r.URL.Query())
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := http.StatusBadGateway
		if _, ok := errors.AsType[badQuery](err); ok {
			status = http.StatusBadRequest
		}
		w.WriteHeader(status)
		_, _ = w.Write(faultJSON(name, err, time.Time{})) // to a browser that may have gone
		return
	}
	_, _ = w.Write(append(slices.Clip(a.text), '\n'))
}

// faultJSON says why a panel cannot be shown, and of when the last answer is.
func faultJSON(panel string, err error, last time.Time) []byte {
	text, _ := json.Marshal(struct { // no error: these are texts
		Panel string    `json:"panel"`
		Error string    `json:"error"`
		Last  time.Time `json:"last,omitzero"`
	}{panel, err.Error(), last})
	return append(text, '\n')
}
