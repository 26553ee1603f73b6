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
}

// A panel is a part of a page, as JSON.
type panel struct {
	// every is how old an answer may be that several browsers share, and how often one that looks
	// gets a new one. If the panel reads the records of all replicas, that is longer where there are
	// many.
	every    time.Duration
	readsAll bool

	// params are the parameters that the answer depends on.
	params []string

	// show returns the panel. With an id, which a browser returns as the parameter since, the next
	// answer has only what came later.
	show func(ctx context.Context, q url.Values) (answer any, id int64, err error)
}

// A shared answer is computed once for all browsers that ask for the same.
type shared struct {
	ready chan struct{} // closed when the others are set
	until time.Time     // it may be shown
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
	maxCommands = 4                // that run at once
	patience    = 20 * time.Second // for a command
	perReplica  = 30 * time.Millisecond
)

// newServer returns what the console serves until ctx ends, and a function that waits for its end.
func newServer(ctx context.Context, a *cli.App, reader *cluster.Reader, quotas *quotaPoints) (h http.Handler, wait func()) {
	s := &server{
		ctx: ctx, app: a, reader: reader, quotas: quotas, started: time.Now(), cpuBefore: cpuSeconds(),
		commands: make(chan struct{}, maxCommands), shared: map[string]*shared{},
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

// answer returns a panel as JSON: the one that another browser got, if that is new enough.
func (s *server) answer(ctx context.Context, name string, q url.Values) (text []byte, id int64, err error) {
	p := s.panels[name]
	asked := url.Values{}
	for _, param := range p.params {
		if v := q.Get(param); v != "" {
			asked.Set(param, v)
		}
	}
	key, now := name+"?"+asked.Encode(), time.Now()
	s.mu.Lock()
	a := s.shared[key]
	if a == nil || a.old(now) {
		maps.DeleteFunc(s.shared, func(_ string, a *shared) bool { return a.old(now) })
		if len(s.shared) >= maxShared {
			s.mu.Unlock()
			return nil, 0, fmt.Errorf("browsers look at more than %d different panels: try again later", maxShared)
		}
		a = &shared{ready: make(chan struct{})}
		s.shared[key] = a
		s.running.Go(func() { s.compute(a, p, asked) })
	}
	s.mu.Unlock()
	select {
	case <-a.ready:
		return a.text, a.id, a.err
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
}

func (s *server) compute(a *shared, p panel, q url.Values) {
	defer close(a.ready)
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	var answer any
	if answer, a.id, a.err = p.show(ctx, q); a.err == nil {
		a.text, a.err = json.Marshal(answer)
	}
	a.until = time.Now().Add(s.every(p) * 9 / 10)
}

// every returns how often a panel is shown.
func (s *server) every(p panel) time.Duration {
	if p.readsAll {
		return max(p.every, time.Duration(s.reader.Cost().Replicas)*perReplica)
	}
	return p.every
}

// A badQuery is the fault of who asks.
type badQuery struct{ error }

// once answers a request with a panel.
func (s *server) once(w http.ResponseWriter, r *http.Request, name string) {
	text, _, err := s.answer(r.Context(), name, r.URL.Query())
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := http.StatusBadGateway
		if _, ok := errors.AsType[badQuery](err); ok {
			status = http.StatusBadRequest
		}
		w.WriteHeader(status)
		text = faultJSON(name, err)
	}
	_, _ = w.Write(append(slices.Clip(text), '\n')) // to a browser that may have gone
}

func faultJSON(panel string, err error) []byte {
	text, _ := json.Marshal(struct { // no error: these are texts
		Panel string `json:"panel"`
		Error string `json:"error"`
	}{panel, err.Error()})
	return text
}
