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
	"overview": {"status", "overview", "health"},
	"topic":    {"status", "topic", "points", "explain", "history"},
	"history":  {"status", "history"},
	"quotas":   {"status", "quotas", "decisions"},
	"health":   {"status", "health", "console"},
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
	_ = out.Flush() // the browser knows that it is answered
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
	if s.panels[name].runs {
		defer s.view(name, q)()
	}
	var good time.Time // when there was an answer
	for last := ""; ; {
		a, err := s.answer(ctx, name, q)
		var event string
		wait := time.Second
		if err != nil {
			event = fmt.Sprintf("event: fault\ndata: %s\n", faultJSON(name, err, good))
		} else {
			good, wait = time.Now(), max(s.panels[name].every, time.Until(a.until))
			event = fmt.Sprintf("event: %s\ndata: %s\n\n", name, a.text)
			if a.id != 0 {
				event = fmt.Sprintf("id: %d\n%s", a.id, event)
				q.Set("since", strconv.FormatInt(a.id, 10))
			}
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
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}
