package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// pagePanels are the panels of each page. A browser gets all of a page in one stream, since it
// opens six to a host at most.
var pagePanels = map[string][]string{
	"overview": {"overview", "health"},
	"topic":    {"topic", "points", "explain", "history"},
	"history":  {"history"},
	"quotas":   {"quotas", "decisions"},
	"health":   {"health", "console"},
}

// idleFor is how long a stream may have nothing new, before a browser that has gone is noticed.
const idleFor = 15 * time.Second

// stream sends the panels of a page, each when it has changed, as server-sent events, until the
// browser goes.
func (s *server) stream(w http.ResponseWriter, r *http.Request, names []string) {
	w.Header().Set("Content-Type", "text/event-stream")
	s.streams.Add(1)
	defer s.streams.Add(-1)
	ctx, cancel := context.WithCancel(r.Context())
	events := make(chan string)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	for _, name := range names {
		q := r.URL.Query()
		if id := r.Header.Get("Last-Event-ID"); id != "" {
			q.Set("since", id)
		}
		following.Go(func() { s.follow(ctx, name, q, events) })
	}
	out := http.NewResponseController(w)
	idle := time.NewTicker(idleFor)
	defer idle.Stop()
	for {
		var event string
		select {
		case event = <-events:
			idle.Reset(idleFor)
		case <-idle.C:
			event = ": nothing new\n\n"
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		}
		_ = out.SetWriteDeadline(time.Now().Add(idleFor)) // the server's is for whole answers
		if _, err := w.Write([]byte(event)); err != nil || out.Flush() != nil {
			return
		}
	}
}

// follow sends a panel each time that it has changed, until ctx ends.
func (s *server) follow(ctx context.Context, name string, q url.Values, events chan<- string) {
	p := s.panels[name]
	for last := ""; ; {
		text, id, err := s.answer(ctx, name, q)
		event := fmt.Sprintf("event: %s\ndata: %s\n\n", name, text)
		switch {
		case err != nil:
			event = fmt.Sprintf("event: fault\ndata: %s\n\n", faultJSON(name, err))
		case id != 0:
			event = fmt.Sprintf("id: %d\n%s", id, event)
			q.Set("since", strconv.FormatInt(id, 10))
		}
		if event != last {
			select {
			case events <- event:
			case <-ctx.Done():
				return
			}
			last = event
		}
		select {
		case <-time.After(s.every(p)):
		case <-ctx.Done():
			return
		}
	}
}
