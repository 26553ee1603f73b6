package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const orders = "kafka://public/default/orders"

// A counted store counts how often names of replicas are read.
type counted struct {
	*memory.Store
	reads, all atomic.Int64
}

func (c *counted) Published(ctx context.Context, cluster string) ([][]byte, error) {
	if cluster == "eu" { // and not the ratekeeper's
		c.all.Add(1)
	}
	return c.Store.Published(ctx, cluster)
}

func (c *counted) Publishers(ctx context.Context, cluster string) ([]string, error) {
	c.reads.Add(1)
	return c.Store.Publishers(ctx, cluster)
}

// A site is a console of a cluster with one busy topic, on the listener that the command has.
type site struct {
	URL     string
	address string
	t       *testing.T
	store   *counted
	app     *cli.App
}

func open(t *testing.T) *site {
	store := &counted{Store: memory.New()}
	lim, err := dispatch.Open(t.Context(), dispatch.Config{
		Permits: store, Cluster: "eu", Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(100)}),
	})
	require.NoError(t, err)
	sub, err := lim.Subscription(orders, "billing")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	app := &cli.App{
		Cluster: "eu", Output: "table", PoliciesURL: "file:" + filepath.Join(t.TempDir(), "p.yaml?create=true"),
	}
	at, stop, err := Serve(ctx, app, store, "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for err := error(nil); err == nil; {
			sub.ReportBacklog(5000)
			_, err = sub.Acquire(ctx, 1)
		}
	})
	t.Cleanup(func() {
		cancel()
		stop()
		running.Wait()
		assert.NoError(t, lim.Close())
	})
	return &site{"http://" + at.String(), at.String(), t, store, app}
}

// An answer is that of a request; its body is closed when the test ends, or by end.
type answer struct {
	status int
	header http.Header
	body   io.Reader
	end    func()
}

func (s *site) do(method, path string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, nil)
	require.NoError(s.t, err)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	require.NoError(s.t, err)
	end := sync.OnceFunc(func() { _ = got.Body.Close() })
	s.t.Cleanup(end)
	return answer{got.StatusCode, got.Header, got.Body, end}
}

// get reads a panel.
func (s *site) get(path string, v any) (status int) {
	s.t.Helper()
	answer := s.do(http.MethodGet, path)
	assert.Equal(s.t, "application/json", answer.header.Get("Content-Type"))
	require.NoError(s.t, json.NewDecoder(answer.body).Decode(v))
	return answer.status
}

// paths are all that a browser asks for: the views, their files, all panels and all streams.
func paths(t *testing.T) []string {
	all := append(slices.Clip(views), "/page/uPlot.LICENSE")
	entries, err := files.ReadDir("page")
	require.NoError(t, err)
	for _, e := range entries {
		all = append(all, "/page/"+e.Name())
	}
	const parameters = "?topic=" + orders + "&revision=1"
	for name := range (&server{}).allPanels() {
		all = append(all, "/api/"+name+parameters)
	}
	for page := range pagePanels {
		all = append(all, "/events/"+page+parameters)
	}
	return all
}

// TestGuard: only pages of the console itself get an answer, and only to questions.
func TestGuard(t *testing.T) {
	s := open(t)
	_, port, _ := strings.Cut(s.address, ":")
	for _, path := range paths(t) {
		for want, header := range map[int][]string{
			200: {"Origin", s.URL, "Sec-Fetch-Site", "same-origin"},
			421: {"Host", "evil.example:" + port},
			403: {"Origin", "http://evil.example"},
		} {
			answer := s.do(http.MethodGet, path, header...)
			answer.end()
			if name, _, _ := strings.Cut(path, "?"); want == 200 && (name == "/api/quotas" || name == "/api/diff") {
				want = 502 // they are asked, and have nothing here
			}
			assert.Equal(t, want, answer.status, "%s %v", path, header)
			assert.Equal(t, policyOfContent, answer.header.Get("Content-Security-Policy"), path)
			assert.Equal(t, "nosniff", answer.header.Get("X-Content-Type-Options"), path)
			assert.Empty(t, answer.header.Get("Set-Cookie"))
			assert.Empty(t, answer.header.Get("Access-Control-Allow-Origin"))
		}
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} {
			assert.Equal(t, 405, s.do(method, path).status, "%s %s", method, path)
		}
	}
	for host, want := range map[string]int{
		"localhost:" + port: 200, "127.0.0.1": 200, "[::1]:" + port: 200, "127.1.2.3:1": 200,
		"localhost.evil.example": 421, "127.0.0.1.evil.example:" + port: 421, "0.0.0.0:" + port: 421, "192.168.1.2:" + port: 421,
	} {
		assert.Equal(t, want, s.do(http.MethodGet, "/api/overview", "Host", host).status, host)
	}
	for origin, want := range map[string]int{"null": 403, "http://localhost:" + port: 403, "https://" + s.address: 403} {
		assert.Equal(t, want, s.do(http.MethodGet, "/api/overview", "Origin", origin).status, origin)
	}
	assert.Equal(t, 403, s.do(http.MethodGet, "/events/overview", "Sec-Fetch-Site", "cross-site").status)
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	for path, want := range map[string]int{
		"/": 200, "/topic?topic=" + orders: 200, "/health": 200, "/api/overview": 403, "/page/console.js": 403, "/events/overview": 403,
	} {
		assert.Equal(t, want, s.do(http.MethodGet, path, link...).status, "a link from elsewhere to %s", path)
	}
	for _, dest := range []string{"iframe", "embed", "script", ""} {
		assert.Equal(t, 403, s.do(http.MethodGet, "/", append(link[:4:4], "Sec-Fetch-Dest", dest)...).status, dest)
	}
	assert.Equal(t, 404, s.do(http.MethodGet, "/x").status)
	assert.Equal(t, 404, s.do(http.MethodGet, "/api/x").status)
}

// TestPages: the page has no script, style or address of its own in it that the policy forbids.
func TestPages(t *testing.T) {
	s := open(t)
	text, err := io.ReadAll(s.do(http.MethodGet, "/").body)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"#]*)"`).FindAllStringSubmatch(string(text), -1) {
		assert.True(t, strings.HasPrefix(m[1], "/"), m[0])
		assert.Equal(t, 200, s.do(http.MethodGet, m[1]).status, m[0])
	}
	assert.NotRegexp(t, `<script>|style=|onclick=|javascript:`, string(text))
	entries, err := files.ReadDir("page")
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "uPlot") || !strings.HasSuffix(e.Name(), ".js") {
			continue
		}
		script, err := files.ReadFile("page/" + e.Name())
		require.NoError(t, err)
		assert.NotRegexp(t, `innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|https?://`, string(script), e.Name())
	}
}

// TestPanels: what the console knows, as JSON.
func TestPanels(t *testing.T) {
	t.Parallel()
	s := open(t)
	var o overviewAnswer
	throttletest.Until(t, "the rate is known", func() bool {
		assert.Equal(t, 200, s.get("/api/overview?filter=orders&sort=backlog", &o))
		return len(o.Rows) == 1 && o.Rows[0].Rate > 1
	})
	assert.Equal(t, "eu", o.Cluster)
	assert.Equal(t, orders, o.Rows[0].Topic)
	assert.EqualValues(t, 5000, o.Rows[0].Backlog)
	for _, q := range []string{"sort=x", "page=-1", "page=x", "size=201"} {
		var fault struct{ Error string }
		assert.Equal(t, 400, s.get("/api/overview?"+q, &fault), q)
		assert.NotEmpty(t, fault.Error)
	}
	long := strings.Repeat("x", cluster.MaxFilter+1)
	var fault struct{ Panel, Error string }
	assert.Equal(t, 400, s.get("/api/overview?sort=x&page=x&filter="+long, &fault))
	assert.Equal(t, "overview", fault.Panel)
	assert.Regexp(t, `(?s)sort "x".*filter: has 201 bytes.*page "x"`, fault.Error, "all faults at once")
	assert.Equal(t, 200, s.get("/api/overview?page=1000", &o))
	assert.Equal(t, 0, o.Page, "the last page")

	var topic topicAnswer
	assert.Equal(t, 200, s.get("/api/topic?topic="+url.QueryEscape(orders), &topic))
	require.NotNil(t, topic.Row)
	assert.Equal(t, orders, topic.Row.Topic)
	for name, want := range map[string]bool{orders: true, "cluster": false, "public/default": false, "--help": false} {
		assert.Equal(t, 200, s.get("/api/topic?topic="+url.QueryEscape(name), &topic))
		assert.Equal(t, want, topic.IsTopic, name)
	}
	var points cluster.Points
	throttletest.Until(t, "it has points", func() bool {
		assert.Equal(t, 200, s.get("/api/points?topic="+url.QueryEscape(orders), &points))
		return len(points.Times) > 1
	})
	assert.Equal(t, "billing", points.Rates[0].Name)
	assert.Len(t, points.Rates[0].Values, len(points.Times))
	assert.Len(t, points.Limit, len(points.Times))
	last := points.Times[len(points.Times)-1]
	assert.Equal(t, 200, s.get(fmt.Sprintf("/api/points?since=%d&topic=%s", last, url.QueryEscape(orders)), &points))
	assert.NotContains(t, points.Times, last)
	assert.Equal(t, 200, s.get("/api/topic?topic=x", &topic))
	assert.Nil(t, topic.Row, "and not one of zeros")
	var explanation struct {
		Topic string
		Why   []string
	}
	assert.Equal(t, 200, s.get("/api/explain?topic="+url.QueryEscape(orders), &explanation))
	assert.Equal(t, orders, explanation.Topic)
	assert.NotEmpty(t, explanation.Why)
	var changes struct{ Records []any }
	assert.Equal(t, 200, s.get("/api/history?limit=5&scope=cluster", &changes))
	assert.Empty(t, changes.Records)
	assert.Equal(t, 400, s.get("/api/history?limit=x&before=-1", &fault))
	assert.Equal(t, 400, s.get("/api/history?scope=cluster&topic="+url.QueryEscape(orders), &fault))
	assert.Equal(t, 400, s.get("/api/history?topic=cluster", &fault))
	assert.NotContains(t, fault.Error, "limit only", "that is no fault of it")
	assert.Equal(t, 400, s.get("/api/diff?revision=x", &fault))
	assert.Equal(t, 502, s.get("/api/explain?topic=--help", &fault), "it is no flag")
	assert.Contains(t, fault.Error, `"--help"`)
	assert.Equal(t, 502, s.get("/api/quotas", &fault), "without a shared permit store")
}

// An event is one of a stream.
type event struct{ id, name, data string }

// next reads an event.
func next(t *testing.T, in *bufio.Scanner) (e event) {
	for in.Scan() {
		name, value, _ := strings.Cut(in.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
		case "":
			if e.data != "" {
				return e
			}
		}
	}
	t.Fatal("the stream has ended: ", in.Err())
	return e
}

// scan returns a scanner of the lines of an answer.
func scan(a answer) *bufio.Scanner {
	in := bufio.NewScanner(a.body)
	in.Buffer(nil, 1<<20)
	return in
}

// TestStream: a browser gets each panel of a page when it has changed; one that comes back gets the
// points that it missed.
func TestStream(t *testing.T) {
	t.Parallel()
	s := open(t)
	throttletest.Until(t, "the topic is known", func() bool {
		var o overviewAnswer
		s.get("/api/overview", &o)
		return len(o.Rows) == 1
	})
	path := "/events/topic?topic=" + url.QueryEscape(orders)
	var last int64
	id := ""
	for range 2 {
		answer := s.do(http.MethodGet, path, "Last-Event-ID", id)
		assert.Equal(t, "text/event-stream", answer.header.Get("Content-Type"))
		in, seen := scan(answer), map[string]int{}
		for seen["points"] < 3 {
			e := next(t, in)
			seen[e.name]++
			if e.name != "points" {
				assert.Empty(t, e.id)
				continue
			}
			var p cluster.Points
			require.NoError(t, json.Unmarshal([]byte(e.data), &p))
			for _, at := range p.Times {
				assert.Greater(t, at, last, "each point comes once")
				last = at
			}
			if len(p.Times) > 0 {
				assert.Equal(t, fmt.Sprint(last), e.id)
				id = e.id
			}
		}
		assert.Equal(t, 1, seen["explain"], "it has not changed")
		assert.Equal(t, 1, seen["history"])
		assert.Positive(t, seen["topic"])
		assert.Zero(t, seen["fault"])
		answer.end()
	}
	in := scan(s.do(http.MethodGet, "/events/overview?sort=x"))
	e := next(t, in)
	for !strings.Contains(e.data, `"panel":"overview"`) { // others may come first
		e = next(t, in)
	}
	assert.Equal(t, "fault", e.name)
	assert.NotContains(t, e.data, `"last"`, "there was no answer before")
}

// TestShared: an answer is computed once for all that ask for the same, whatever else they send;
// and the number of answers is limited.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var shown []string
		s := &server{ctx: t.Context(), shared: map[string]*shared{}, panels: map[string]panel{
			"p": {every: 10 * time.Second, params: []string{"n"}, show: func(_ context.Context, q url.Values) (any, int64, error) {
				mu.Lock()
				shown = append(shown, q.Encode())
				mu.Unlock()
				time.Sleep(time.Second)
				return q.Get("n"), 7, nil
			}},
		}}
		ask := func(query string) (string, error) {
			q, _ := url.ParseQuery(query)
			a, err := s.answer(t.Context(), "p", q)
			if err != nil {
				return "", err
			}
			return string(a.text), nil
		}
		var asking sync.WaitGroup
		for n := range 100 {
			asking.Go(func() {
				text, err := ask(fmt.Sprintf("n=1&other=%d", n))
				assert.NoError(t, err)
				assert.Equal(t, `"1"`, text)
			})
		}
		asking.Wait()
		assert.Equal(t, []string{"n=1"}, shown)
		gone, cancel := context.WithTimeout(t.Context(), time.Second/2)
		_, err := s.answer(gone, "p", url.Values{"n": {"2"}})
		assert.ErrorIs(t, err, context.DeadlineExceeded, "who has gone does not wait")
		cancel()
		time.Sleep(time.Second)
		_, err = ask("n=2")
		assert.NoError(t, err)
		assert.Len(t, shown, 2, "the answer was computed for others nevertheless")
		time.Sleep(10 * time.Second)
		_, err = ask("n=1")
		assert.NoError(t, err)
		assert.Len(t, shown, 3, "it was too old")

		for n := range maxShared {
			asking.Go(func() { _, _ = ask(fmt.Sprintf("n=many%d", n)) })
		}
		time.Sleep(time.Second / 2)
		_, err = ask("n=new")
		assert.ErrorContains(t, err, "more than 500 different panels", "all are being computed")
		asking.Wait()
		_, err = ask("n=new")
		assert.NoError(t, err, "another one is forgotten")
		assert.Len(t, s.shared, maxShared)
		time.Sleep(10 * time.Second)
		_, err = ask("n=new")
		assert.NoError(t, err)
		assert.Len(t, s.shared, 1, "the others are forgotten")
		time.Sleep(20 * time.Second)
		_, err = ask("n=newer")
		assert.NoError(t, err)
		assert.Len(t, s.shared, 1, "also if there is room for many: nobody looks at it any more")
	})
}

// TestCommandsOnView: a command that several streams follow counts once, while one of them does.
func TestCommandsOnView(t *testing.T) {
	s := &server{onView: map[string]int{}, panels: map[string]panel{"explain": {params: []string{"topic"}}}}
	assert.Equal(t, 1, s.commandsOnView())
	var ends []func()
	for _, topic := range []string{"a", "b", "a", "c"} {
		ends = append(ends, s.view("explain", url.Values{"topic": {topic}, "other": {topic + "x"}}))
	}
	for _, left := range []int{3, 3, 2, 1} {
		assert.Equal(t, left, s.commandsOnView())
		ends[0]()
		ends = ends[1:]
	}
	assert.Empty(t, s.onView)
}

// TestManyBrowsers: however many browsers look, the permit store is read once a second.
func TestManyBrowsers(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	var events atomic.Int64
	var browsers sync.WaitGroup
	for range 100 {
		browsers.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/events/overview", nil)
			if !assert.NoError(t, err) {
				return
			}
			answer, err := http.DefaultClient.Do(r)
			if !assert.NoError(t, err) {
				return
			}
			defer func() { _ = answer.Body.Close() }()
			for in := bufio.NewScanner(answer.Body); in.Scan(); {
				if strings.HasPrefix(in.Text(), "data: ") {
					events.Add(1)
				}
			}
		})
	}
	throttletest.Until(t, "all browsers got several", func() bool { return events.Load() > 300 })
	begin, reads := time.Now(), s.store.reads.Load()
	time.Sleep(3 * time.Second)
	assert.LessOrEqual(t, float64(s.store.reads.Load()-reads), time.Since(begin).Seconds()+1)
	cancel()
	browsers.Wait()
	var c costAnswer
	throttletest.Until(t, "the browsers are gone", func() bool {
		s.get("/api/console", &c)
		return c.Browsers == 0
	})
}

// TestTopicsOnView: however many topics browsers look at, the records of all are read once.
func TestTopicsOnView(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	r := &records{store: s.store, cluster: "eu"}
	var reading sync.WaitGroup
	before := s.store.all.Load()
	for range 50 {
		reading.Go(func() {
			for ctx.Err() == nil {
				_, err := r.read(ctx)
				assert.NoError(t, err)
			}
		})
	}
	start := time.Now()
	time.Sleep(2 * time.Second)
	cancel()
	reading.Wait()
	assert.LessOrEqual(t, float64(s.store.all.Load()-before), time.Since(start).Seconds()+1)
	assert.Positive(t, s.store.all.Load()-before)
}

// TestFlags: the page is for this machine only.
func TestFlags(t *testing.T) {
	for _, address := range []string{"0.0.0.0:9400", ":9400", "192.168.1.1:9400", "example.org:80", "9400"} {
		status, _, errs := clitest.Run(t.Context(), []cli.Family{Commands}, "console", "--listen", address)
		assert.Equal(t, cli.ExitUsage, status)
		assert.Contains(t, errs, fmt.Sprintf("--listen %q: want an address of this machine only", address))
		assert.Contains(t, errs, "--permits: missing")
		assert.Contains(t, errs, "--policies: missing")
	}
}
