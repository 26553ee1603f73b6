package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/history"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotas"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A world is a cluster on a real etcd and Redis, with two replicas that read as fast as they may, a
// console of it, and a browser that looks.
type world struct {
	t        *testing.T
	ctx      context.Context // of what runs
	end      func()
	leave    func() // ends the console
	flags    []string
	store    string
	permits  string
	url      string
	redis    *services.RedisProcess
	etcd     *services.EtcdNode
	browser  context.Context
	mu       sync.Mutex
	requests []string // of the browser
	messages []string // of its console
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, redis: services.RedisServer(t), etcd: services.Etcd(t)}
	w.store = "etcd://" + w.etcd.Endpoint + "/p?create=true"
	w.permits = services.Patient(w.redis.URL)
	w.flags = []string{"--policies", w.store, "--permits", w.permits, "--cluster", "eu"}
	w.admin("set-msg-rate", orders, "100", "--as", "ann", "-m", "the first limit")
	w.ctx, w.end = context.WithCancel(t.Context())
	for _, name := range []string{"billing", "alerts"} {
		for range 2 {
			w.run(orders, name, func(s *dispatch.Subscription) error {
				s.ReportBacklog(50_000)
				_, err := s.Acquire(w.ctx, 1)
				return err
			})
		}
	}
	w.console("127.0.0.1:0")
	w.open()
	return w
}

// console starts the console.
func (w *world) console(listen string) {
	ctx, end := context.WithCancel(w.ctx)
	var out printed
	var running sync.WaitGroup
	args := append(slices.Clip(w.flags), "console", "--listen", listen)
	running.Go(func() { cli.Run(ctx, args, strings.NewReader(""), &out, &out, Commands) })
	w.leave = func() {
		end()
		running.Wait()
	}
	w.t.Cleanup(w.leave)
	throttletest.Until(w.t, "the console says where it is", func() bool {
		w.url, _, _ = strings.Cut(out.String(), " ")
		return strings.HasPrefix(w.url, "http://")
	})
}

// populate adds topics of several conditions, and a ratekeeper.
func (w *world) populate() {
	const payments, events = "kafka://public/default/payments", "persistent://shop/mail/events"
	w.admin("set-msg-rate", "cluster", "2000", "--as", "ann", "-m", "nobody needs more")
	w.admin("set", "shop/web", "messageRate=150", "aggregate=true", "--as", "ann", "-m", "the database bears 200 writes a second")
	w.admin("pause", payments, "--for", "2h", "--as", "bob", "-m", "the provider is down")
	w.run(payments, "export", func(s *dispatch.Subscription) error {
		s.ReportBacklog(1200)
		_, err := s.Acquire(w.ctx, 1)
		return err
	})
	for _, topic := range []string{"kafka://shop/web/clicks", "kafka://shop/web/carts", "kafka://shop/mail/letters"} {
		w.run(topic, "statistics", func(s *dispatch.Subscription) error {
			s.ReportBacklog(900)
			time.Sleep(5 * time.Millisecond)
			_, err := s.Acquire(w.ctx, 1)
			return err
		})
	}
	w.run(events, "search", func(s *dispatch.Subscription) error {
		s.ReportBacklog(0)
		time.Sleep(10 * time.Millisecond)
		_, err := s.Acquire(w.ctx, 1)
		return err
	})
	w.run("kafka://public/default/returns", "audit", func(s *dispatch.Subscription) error {
		_, err := s.Acquire(w.ctx, 1)
		<-w.ctx.Done() // it reads no more
		return err
	})
	w.publish(dispatch.Stats{Replica: "over", Time: time.Now().UnixMilli(), Subscriptions: []dispatch.SubscriptionStats{
		{Topic: "kafka://public/default/archive", Subscription: "copy", Limits: []dispatch.LimitStats{{Reason: dispatch.ReasonMessages, Rate: 20}}},
	}}, 3*time.Second)
	w.admin("quota", "set", "tag:reports", "total=200KiB", "reserved=50KiB", "--as", "ann")
	go cli.Run(w.ctx, append(w.flags, "ratekeeper"), strings.NewReader(""), &printed{}, &printed{}, quotas.Commands)
}

// run runs a replica with a subscription, which reads until reading fails.
func (w *world) run(topic, name string, read func(*dispatch.Subscription) error) {
	lim, err := throttle.Open(w.ctx, w.store, w.permits, throttle.WithCluster("eu"))
	require.NoError(w.t, err)
	sub, err := lim.Subscription(topic, name)
	require.NoError(w.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for w.ctx.Err() == nil && read(sub) == nil {
		}
	}()
	w.t.Cleanup(func() {
		w.end()
		<-done
		assert.NoError(w.t, lim.Close())
	})
}

// publish publishes the status record of a replica that does not exist.
func (w *world) publish(s dispatch.Stats, ttl time.Duration) {
	text, err := json.Marshal(s)
	require.NoError(w.t, err)
	w.publishText(s.Replica, text, ttl)
}

func (w *world) publishText(replica string, text []byte, ttl time.Duration) {
	permits, err := throttle.OpenPermits(w.permits)
	require.NoError(w.t, err)
	require.NoError(w.t, permits.Publish(w.t.Context(), "eu", replica, text, ttl))
	require.NoError(w.t, permits.Close())
}

// printed is what a command prints.
type printed struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *printed) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *printed) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// admin runs a command, which must succeed.
func (w *world) admin(args ...string) string {
	w.t.Helper()
	families := []cli.Family{policies.Commands, history.Commands, quotas.Commands}
	status, out, errs := clitest.Run(w.t.Context(), families, append(slices.Clip(w.flags), args...)...)
	require.Zero(w.t, status, errs)
	return out
}

// open opens a browser, and notes what it asks for and complains of.
func (w *world) open() {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(services.Chromium(w.t)), chromedp.NoSandbox)
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	w.t.Cleanup(end)
	browser, end := chromedp.NewContext(allocator)
	w.t.Cleanup(end)
	w.browser = browser
	_, err := chromedp.Call(browser, network.Enable, network.EnableParams{})
	require.NoError(w.t, err)
	require.NoError(w.t, chromedp.Listen(browser, func(ev any) {
		if e, ok := ev.(*network.EventRequestWillBeSent); ok {
			w.mu.Lock()
			w.requests = append(w.requests, e.Request.URL)
			w.mu.Unlock()
		}
	}))
	messages := chromedp.Console(browser)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			w.mu.Lock()
			w.messages = append(w.messages, m.String())
			w.mu.Unlock()
		}
	}()
}

// show opens a page of the console.
func (w *world) show(path string) {
	w.t.Helper()
	require.NoError(w.t, chromedp.Do(w.browser, chromedp.Navigate(w.url+path)))
}

// eval returns what an expression is in the page, as JSON.
func eval[T any](w *world, expression string) (v T) {
	w.t.Helper()
	text, err := chromedp.Run(w.browser, chromedp.Evaluate[string]("JSON.stringify("+expression+") || 'null'"))
	require.NoError(w.t, err)
	require.NoError(w.t, json.Unmarshal([]byte(text), &v))
	return v
}

// text is that of the page's main part.
func (w *world) text() string {
	w.t.Helper()
	return eval[string](w, "document.body.innerText")
}

// until waits until the page has a text.
func (w *world) until(what string) {
	w.t.Helper()
	throttletest.Until(w.t, "the page has "+what, func() bool { return strings.Contains(w.text(), what) })
}

// press presses keys.
func (w *world) press(keys string) {
	w.t.Helper()
	require.NoError(w.t, chromedp.Do(w.browser, chromedp.KeyEvent(keys)))
}

// plotted is the last value of a series in the first plot.
func (w *world) plotted(series string) float64 {
	w.t.Helper()
	v := eval[*float64](w, fmt.Sprintf("document.querySelector('figure')?.plotted?.()[%q] ?? null", series))
	if v == nil {
		return -1
	}
	return *v
}

var topicPage = "/topic?topic=" + url.QueryEscape(orders)

// TestBrowser: what somebody sees who looks at the console while limits work.
func TestBrowser(t *testing.T) {
	w := newWorld(t)
	w.show("/")
	w.until(orders)
	throttletest.Until(t, "it is throttled", func() bool {
		return eval[string](w, "document.querySelector('td .condition')?.innerText ?? ''") == "throttled"
	})
	rate := func() string { return eval[string](w, "document.querySelectorAll('tbody td')[2]?.innerText ?? ''") }
	throttletest.Until(t, "the rate is that of the limit", func() bool {
		r := rate()
		return r == "100/s" || r == "101/s" || r == "99.9/s"
	})

	// A limit that is set on the command line is in force in the plot, with its author and reason.
	w.show(topicPage)
	throttletest.Until(t, "the plot has the old limit", func() bool { return w.plotted("limit") == 100 })
	w.admin("set-msg-rate", orders, "200", "--as", "bob", "-m", "a load test")
	throttletest.Until(t, "the plot has the new limit", func() bool { return w.plotted("limit") == 200 })
	throttletest.Until(t, "the plot has the new rate", func() bool {
		return w.plotted("billing") > 90 && w.plotted("alerts") > 90 && w.plotted("billing") < 110
	})
	w.until("a load test")
	throttletest.Until(t, "the change is a mark in the plot", func() bool {
		return strings.Contains(eval[string](w, "document.querySelector('figure canvas').getAttribute('aria-label')"), "bob: a load test")
	})
	w.until("messageRate=200/s -m 'keep") // the command that pins the limit has its unit

	// The history has the command that undoes it; undone, the old limit is back.
	w.show("/history")
	w.until("bob")
	revision := eval[string](w, "/revision (\\d+)/.exec(document.querySelector('article').innerText)[1]")
	w.until("100/s → 200/s")
	w.admin("rollback", revision, "-m", "it is over")
	w.until("it is over")
	w.show(topicPage)
	throttletest.Until(t, "the plot has the old limit", func() bool { return w.plotted("limit") == 100 })

	// Redis stops and starts; the page says so, and goes on without a reload.
	eval[int](w, "window.kept = 1")
	w.redis.Stop()
	w.until("the permit store cannot be read since")
	w.redis.Start()
	restarted := float64(time.Now().Unix())
	throttletest.Until(t, "the page goes on", func() bool {
		return !strings.Contains(w.text(), "cannot be read since") && w.plotted("limit") == 100 && w.plotted("time") > restarted
	})

	// Etcd stops and starts, too. Plots do not need it, and go on meanwhile.
	w.etcd.Stop()
	w.until("the policy store cannot be read since")
	stopped := float64(time.Now().Unix())
	throttletest.Until(t, "the plot goes on", func() bool { return w.plotted("time") > stopped+3 && w.plotted("limit") == 100 })
	assert.Contains(t, w.text(), "the policy store cannot be read since")
	assert.NotContains(t, w.text(), "the permit store cannot be read since")
	w.etcd.Start()
	throttletest.Until(t, "the policy store is back", func() bool { return !strings.Contains(w.text(), "cannot be read since") })
	w.admin("set-msg-rate", orders, "120", "--as", "ann", "-m", "etcd is back")
	throttletest.Until(t, "the plot has the next limit", func() bool { return w.plotted("limit") == 120 })
	w.until("etcd is back")
	assert.Equal(t, 1, eval[int](w, "window.kept"))

	// Keys: Esc goes up, / goes to the filter, which is in the address.
	w.press("\x1b")
	throttletest.Until(t, "Esc goes up", func() bool { return eval[string](w, "location.pathname") == "/" })
	w.press("/")
	throttletest.Until(t, "/ goes to the filter", func() bool { return eval[string](w, "document.activeElement.type") == "search" })
	eval[int](w, "document.activeElement.select() || 1") // a browser under test types the / as well
	w.press("nothing has this name")
	w.until("no topic matches")
	assert.Equal(t, "?filter=nothing+has+this+name", eval[string](w, "location.search"))
	w.until("1\ntopics") // the totals stay
	w.press("\x1b")
	assert.Equal(t, "?filter=nothing+has+this+name", eval[string](w, "location.search"), "Esc leaves the filter first")
	assert.Equal(t, "nothing has this name", eval[string](w, "document.querySelector('input[type=search]').value"))
	w.press("\x1b")
	w.until(orders)

	// The focus and open details stay while the page changes; Esc keeps the filter.
	w.show("/?filter=orders&sort=backlog")
	w.until(orders)
	assert.Equal(t, "orders", eval[string](w, "document.querySelector('input[type=search]').value"))
	eval[int](w, "document.querySelector('tbody a').focus() || 1")
	eval[int](w, "(window.link = document.activeElement) && 1")
	was := eval[string](w, "document.getElementById('live').textContent")
	throttletest.Until(t, "the page is newer", func() bool { return eval[string](w, "document.getElementById('live').textContent") != was })
	assert.True(t, eval[bool](w, "window.link === document.activeElement"))
	w.press("\r")
	w.until("Dispatched against the limit")
	eval[int](w, "(document.querySelector('.tiles details').open = true) && 1")
	w.until("smoothed over 3 s")
	was = eval[string](w, "document.getElementById('live').textContent")
	throttletest.Until(t, "the page is newer", func() bool { return eval[string](w, "document.getElementById('live').textContent") != was })
	assert.True(t, eval[bool](w, "document.querySelector('.tiles details').open"))
	w.press("\x1b")
	throttletest.Until(t, "Esc keeps the filter", func() bool { return eval[string](w, "location.search") == "?filter=orders&sort=backlog" })
	w.check()
}

// check fails the test if the page has asked another host, or complained; or if nothing was seen of
// what it has asked for.
func (w *world) check() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.NotEmpty(w.t, w.requests)
	for _, r := range w.requests {
		assert.True(w.t, strings.HasPrefix(r, w.url+"/"), r)
	}
	assert.Empty(w.t, w.messages)
}

// TestComesBack: a page that was hidden, or whose console has ended and started again, goes on
// without a reload; the browser's Back and Forward do what they do elsewhere; Copy copies the
// command.
func TestComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hide := func(hidden bool) {
		eval[int](w, fmt.Sprintf(`(Object.defineProperty(document, "hidden", {value: %v, configurable: true}),
			document.dispatchEvent(new Event("visibilitychange")), 1)`, hidden))
	}
	browsers := func() (c costAnswer) {
		got, err := http.Get(w.url + "/api/console")
		require.NoError(t, err)
		defer func() { _ = got.Body.Close() }()
		require.NoError(t, json.NewDecoder(got.Body).Decode(&c))
		return c
	}
	w.show(topicPage)
	throttletest.Until(t, "it is plotted", func() bool { return w.plotted("limit") == 100 && browsers().Browsers == 1 })
	eval[int](w, "window.kept = 1")
	hide(true)
	throttletest.Until(t, "a hidden page asks for nothing", func() bool { return browsers().Browsers == 0 })
	was := w.plotted("time")
	w.admin("set-msg-rate", orders, "200", "--as", "bob", "-m", "while nobody looks")
	hide(false)
	throttletest.Until(t, "it has what it missed", func() bool { return w.plotted("limit") == 200 && w.plotted("time") > was })
	w.until("while nobody looks")

	w.leave()
	w.until("does not answer since")
	w.console(strings.TrimPrefix(w.url, "http://"))
	throttletest.Until(t, "the page goes on", func() bool {
		return !strings.Contains(w.text(), "does not answer") && w.plotted("time") > was && browsers().Browsers == 1
	})

	w.until("--dry-run")
	eval[int](w, `(navigator.clipboard.writeText = async t => { window.copied = t; },
		window.later = window.setTimeout,
		window.setTimeout = (f, wait) => wait === 1500 ? (window.sayCopy = f, 0) : window.later(f, wait), 1)`)
	preview := `[...document.querySelectorAll(".command")].find(c => c.innerText.includes("Preview"))`
	eval[int](w, preview+".querySelector('button').click() || 1")
	says := func(what string) func() bool {
		return func() bool { return eval[string](w, preview+".querySelector('button').innerText") == what }
	}
	throttletest.Until(t, "it is copied", says("Copied"))
	at := w.plotted("time")
	throttletest.Until(t, "the page is drawn again", func() bool { return w.plotted("time") >= at+2 })
	assert.True(t, says("Copied")(), "until its time is over")
	eval[int](w, "window.sayCopy() || 1")
	throttletest.Until(t, "it can be copied again", says("Copy"))
	copied := eval[string](w, "window.copied")
	assert.Equal(t, eval[string](w, preview+".querySelector('pre').innerText"), copied)
	assert.Equal(t, "throttle-admin set-msg-rate "+orders+" 200/s --dry-run", copied)

	w.press("\x1b")
	w.until("How hard it is throttled")
	eval[int](w, "window.history.back() || 1")
	w.until("Dispatched against the limit")
	eval[int](w, "window.history.forward() || 1")
	w.until("How hard it is throttled")
	assert.Equal(t, "/", eval[string](w, "location.pathname"))
	assert.Equal(t, 1, eval[int](w, "window.kept"), "it was never loaded again")
	w.mu.Lock()
	w.messages = nil // the browser complains of the console that has ended
	w.mu.Unlock()
	w.check()
}

// TestStrangeNames: names and texts that others have written are shown as texts: as HTML, they
// would do something. No direction or control character gets into the page; none makes it wider.
func TestStrangeNames(t *testing.T) {
	const evil = `<img src=x onerror="window.evil=1"><script>window.evil=1</script>`
	const before = "kafka://public/default/"
	w := newWorld(t)
	names := []string{before + evil, before + "\u202edrowssap", before + "\x1b[31mred", before + strings.Repeat("long", 2500)}
	record := dispatch.Stats{Replica: "r" + evil, Time: time.Now().UnixMilli()}
	for _, name := range names {
		record.Subscriptions = append(record.Subscriptions, dispatch.SubscriptionStats{
			Topic: name, Subscription: "s" + evil, Owner: "tag:" + evil, Waiting: 3, Reason: dispatch.Reason(evil),
			Limits: []dispatch.LimitStats{{Key: evil, Rate: 5}},
		})
	}
	w.publish(record, time.Hour)
	w.publishText("bad"+evil, []byte(evil), time.Hour)
	w.admin("set-msg-rate", orders, "90", "--as", "ann"+evil, "-m", "why"+evil)

	paths := map[string]string{"/": "onerror", "/history": "why<img", "/health": "onerror", "/quotas": "No ratekeeper leads", topicPage: "why<img"}
	for _, name := range names {
		paths["/topic?topic="+url.QueryEscape(name)] = "s<img"
	}
	for path, ready := range paths {
		for _, width := range []int64{360, 1280} {
			require.NoError(t, chromedp.Do(w.browser, chromedp.EmulateViewport(width, 900)))
			w.show(path)
			w.until(ready)
			assert.False(t, eval[bool](w, "'evil' in window"), path)
			assert.Zero(t, eval[int](w, "document.querySelectorAll('#main img, #main script').length"), path)
			assert.NotRegexp(t, "[\u202e\x1b]", w.text()+eval[string](w, "document.title"), path)
			assert.LessOrEqual(t, eval[int64](w, "document.documentElement.scrollWidth"), width, "%s at %d", path, width)
		}
	}
	w.check()
}

// TestAccessible: axe finds no fault of contrast, names or keyboard in any page, in the dark and in
// the light, on a small and on a large screen; and nothing is wider than the screen.
func TestAccessible(t *testing.T) {
	w := newWorld(t)
	w.populate()
	w.show("/")
	for _, condition := range []string{"throttled", "paused", "stale", "flowing", "caught up", "idle"} {
		throttletest.Until(t, "a topic is "+condition, func() bool {
			return eval[bool](w, fmt.Sprintf("[...document.querySelectorAll('td .condition')].some(c => c.innerText.startsWith(%q))", condition))
		})
	}
	axe, err := os.ReadFile("testdata/axe.min.js")
	require.NoError(t, err)
	for path, ready := range map[string]string{
		"/": orders, topicPage: "Backlog, messages", "/history": "the first limit", "/quotas": "tag:reports", "/health": "memory",
	} {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{360, 1280, 2560} {
				_, err := chromedp.Call(w.browser, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
				})
				require.NoError(t, err)
				require.NoError(t, chromedp.Do(w.browser, chromedp.EmulateViewport(width, 900)))
				w.show(path)
				w.until(ready)
				assert.LessOrEqual(t, eval[int64](w, "document.documentElement.scrollWidth"), width, "%s at %d", path, width)
				if path == "/" && width >= 1280 {
					assert.Zero(t, eval[int64](w, "Math.max(...[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth))"),
						"all columns of the overview are in sight at %d", width)
				}
				require.NoError(t, chromedp.Do(w.browser, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
					_, err := chromedp.Evaluate[any](string(axe)+";0")(ctx, target)
					return chromedp.Void{}, err
				}))
				faults, err := chromedp.Run(w.browser, chromedp.Evaluate[string](
					`axe.run(document, {resultTypes: ["violations"]}).then(r => JSON.stringify(r.violations.map(v => [v.id, v.help, v.nodes.map(n => n.html + " " + n.failureSummary)])))`,
					chromedp.EvalAwaitPromise))
				require.NoError(t, err)
				assert.Equal(t, "[]", faults, "%s, %s, %d", path, scheme, width)
			}
		}
	}
	w.check()
}
