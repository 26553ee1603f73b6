package console

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// look opens a browser that looks at a site.
func look(t *testing.T, s *site) *world {
	w := &world{t: t, url: s.URL}
	w.open()
	return w
}

// publish publishes the records of a replica that does not exist, each half second, until the test
// ends. record returns what it has in a second.
func (s *site) publish(replica string, record func(second int64) []dispatch.SubscriptionStats) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		start := time.Now().Unix()
		for n := int64(0); ; n++ {
			stats := dispatch.Stats{Replica: replica, Cluster: "eu", Time: 1000 * (start + n), Subscriptions: record(n)}
			text, err := json.Marshal(stats)
			if !assert.NoError(s.t, err) || s.store.Publish(s.t.Context(), "eu", replica, text, time.Hour) != nil {
				return
			}
			select {
			case <-s.t.Context().Done():
				return
			case <-time.After(time.Second / 2): // two of its seconds in each of ours
			}
		}
	}()
	s.t.Cleanup(func() { <-done })
}

// used is a subscription that uses a number of permits of a limit of 100/s each second.
func used(topic, name string, perSecond, second int64) dispatch.SubscriptionStats {
	return dispatch.SubscriptionStats{
		Topic: topic, Subscription: name, Backlog: -1,
		Limits: []dispatch.LimitStats{{Key: topic, Reason: dispatch.ReasonMessages, Rate: 100, Granted: perSecond * second, Allocations: second}},
	}
}

// await evaluates an expression that is a promise.
func await[T any](w *world, expression string) (v T) {
	w.t.Helper()
	text, err := chromedp.Run(w.browser, chromedp.Evaluate[string]("("+expression+").then(JSON.stringify)", chromedp.EvalAwaitPromise))
	require.NoError(w.t, err)
	require.NoError(w.t, json.Unmarshal([]byte(text), &v))
	return v
}

const (
	free, paid, still = "kafka://public/default/free", "kafka://public/default/paid", "kafka://public/default/still"
	mixed             = "kafka://public/default/mixed"
)

// numbers are records of topics of all kinds.
func numbers(t *testing.T) *site {
	s := open(t)
	s.publish("crafted", func(second int64) []dispatch.SubscriptionStats {
		a, b := used(free, "f", 10, second), used(paid, "p", 10, second)
		a.CaughtUp, b.CaughtUp, a.Limits[0].Bypassed = true, true, true
		x, y := used(mixed, "x", 30, second), used(mixed, "y", 10, second)
		x.Waiting, y.Waiting, x.Backlog, y.Backlog, x.BehindSince = 3, 4, 1_000_000-1000*second, 5, time.Now().Add(-time.Hour).UnixMilli()
		x.WaitTimes.Count, x.WaitTimes.Buckets[3], x.WaitTimes.Buckets[5] = 10*second, 9*second, second
		return []dispatch.SubscriptionStats{a, b, x, y, used(still, "s", 0, second)}
	})
	s.publish("other", func(second int64) []dispatch.SubscriptionStats {
		x := used(mixed, "x", 20, second)
		x.Backlog = 7
		return []dispatch.SubscriptionStats{x}
	})
	return s
}

// cells returns the texts of the row of a topic in the overview, or nil.
func (w *world) cells(topic string) []string {
	w.t.Helper()
	return eval[[]string](w, `[...([...document.querySelectorAll("tbody tr")].find(r => r.dataset.key === `+quoted(topic)+`)?.cells ?? [])].map(c => c.innerText)`)
}

func quoted(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// TestNumbers: what a number is, and what it is not: counted, known, 0.
func TestNumbers(t *testing.T) {
	t.Parallel()
	s := numbers(t)
	w := look(t, s)
	w.show("/")
	const rate, waiting, behind, drained, shares = 2, 4, 7, 8, 9
	throttletest.Until(t, "the rates are known", func() bool {
		for topic, want := range map[string]string{free: "not counted", paid: "10/s", mixed: "60/s", still: "0/s"} {
			if c := w.cells(topic); len(c) < 10 || c[rate] != want {
				return false
			}
		}
		return true
	})
	assert.Equal(t, "f not counted", w.cells(free)[shares])
	assert.Equal(t, "p 100 %", w.cells(paid)[shares], "it has caught up, and is charged")
	assert.Equal(t, "x 83 %\ny 17 %", w.cells(mixed)[shares])
	assert.Equal(t, "7", w.cells(mixed)[waiting])
	assert.Regexp(t, `^1 h 0 min$`, w.cells(mixed)[behind])
	assert.Equal(t, []string{"unknown", "unknown"}, w.cells(still)[behind:behind+2], "its backlog is not known")
	assert.Equal(t, []string{"not behind", "not behind"}, w.cells(free)[behind:behind+2])
	assert.Equal(t, "eu · throttle", eval[string](w, "document.title"))

	w.show("/topic?topic=" + url.QueryEscape(mixed))
	throttletest.Until(t, "it is known when it is drained", func() bool {
		return len(w.computed("drained in")) > 0 && !strings.Contains(w.computed("drained in"), "unknown")
	})
	assert.Equal(t, mixed+" · eu · throttle", eval[string](w, "document.title"))
	throttletest.Until(t, "the rate is smoothed", func() bool { return w.computed("rate") == "x 50/s + y 10/s = 60/s" })
	assert.Equal(t, "x: message rate 100/s; y: message rate 100/s", w.computed("message rate"))
	assert.Equal(t, "x 3 + y 4 = 7", w.computed("waiting calls"))
	assert.Regexp(t, `^x \S+k \+ y 5 = \S+k$`, w.computed("backlog"))
	assert.Regexp(t, `^.*\d\d:\d\d:\d\d - .*\d\d:\d\d:\d\d$`, w.computed("behind for"))
	assert.Regexp(t, `^x \d+ min \d+ s, y 0 = \d+ min \d+ s$`, w.computed("drained in"))
	assert.Equal(t, "x 300 ms, y none = 300 ms", w.computed("wait, 99 %"))

	cells := w.opened("x")
	assert.Len(t, cells, 7, "each number of a subscription opens")
	assert.Regexp(t, `^crafted \d+ permits in \d+ s, smoothed 30/s \+ other \d+ permits in \d+ s, smoothed 20/s = 50/s$`, cells["Rate"])
	assert.Equal(t, "message rate 100/s", cells["Limit"])
	assert.Equal(t, "50/s of 60/s = 83 %", cells["Share"])
	assert.Equal(t, "crafted 3 + other 0 = 3", cells["Waiting"])
	assert.Regexp(t, `^up to 30 ms \d+, up to 300 ms \d+; 99 % of \d+ = \S+: 300 ms$`, cells["Wait p99"])
	assert.Regexp(t, `^crafted \S+k \+ other 7 = \S+k$`, cells["Backlog"])
	assert.Regexp(t, `^\S+k / \S+ a second, of the last .* = \d+ min \d+ s$`, cells["Drained in"])
	assert.Equal(t, "it is not behind", w.opened("y")["Drained in"])

	// While nothing is published any more, nothing is known but since when.
	w.show("/topic?topic=" + url.QueryEscape(free))
	throttletest.Until(t, "the page is there", func() bool {
		return w.computed("message rate") == "f: message rate 100/s (nothing is charged to it now)"
	})
	assert.Equal(t, "not counted", eval[string](w, "document.querySelectorAll('.tiles b')[1].innerText"))
	w.check()
}

// computed is what the tile with a label opens, beside the rule; "" without it.
func (w *world) computed(label string) string {
	w.t.Helper()
	w.openAll()
	return eval[string](w, `([...document.querySelectorAll(".tiles li")].find(li => li.querySelector("summary")?.textContent === `+quoted(label)+`)?.querySelector(".computed")?.textContent ?? "")`)
}

// opened are what the cells of a subscription open, by column.
func (w *world) opened(subscription string) map[string]string {
	w.t.Helper()
	w.openAll()
	return eval[map[string]string](w, `(([row]) => Object.fromEntries([...row.cells].map((c, i) =>
		[row.closest("table").tHead.rows[0].cells[i].innerText, c.querySelector("details .computed")?.textContent]).filter(([, text]) => text !== undefined)))(
		[...document.querySelectorAll("tbody tr")].filter(r => r.dataset.key === `+quoted(subscription+"\n")+`))`)
}

// openAll opens all arithmetic.
func (w *world) openAll() {
	w.t.Helper()
	throttletest.Until(w.t, "all arithmetic is open", func() bool {
		return eval[bool](w, `[...document.querySelectorAll("main details")].map(d => { d.open = true; return !d.how || d.querySelector("small").textContent !== ""; }).every(Boolean)`)
	})
}

// TestTogether: a limit of several topics is above the topics, with what all of them use of it and
// a way to them, and in the page of each topic that has it.
func TestTogether(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.publish("crafted", func(second int64) (all []dispatch.SubscriptionStats) {
		for i, topic := range []string{free, paid, "kafka://shop/web/clicks"} {
			sub := used(topic, "s", 10, second)
			if i < 2 {
				sub.Limits = append(sub.Limits, dispatch.LimitStats{
					Key:    permits.LimitKey("eu", policy.TenantScope("public"), false),
					Reason: dispatch.ReasonTenantMessages, Rate: 40, Granted: 20 * second,
				})
			}
			if i == 0 {
				sub.Waiting, sub.Reason = 3, dispatch.ReasonTenantMessages
			}
			all = append(all, sub)
		}
		return all
	})
	w := look(t, s)
	const key = "tenant:public\ntenant's message rate"
	want := []string{"tenant:public", "throttled", "40/s", "40/s", "100 %", "3", "1 of 2"}
	w.show("/")
	throttletest.Until(t, "the limit has its row", func() bool { return slices.Equal(want, w.cells(key)) })
	eval[int](w, `document.querySelector(".together a").click() || 1`)
	throttletest.Until(t, "the topics of the tenant are shown", func() bool {
		return len(w.cells("kafka://shop/web/clicks")) == 0 && len(w.cells(free)) > 0 && len(w.cells(key)) > 0
	})
	assert.Equal(t, "?filter="+url.QueryEscape("://public/"), eval[string](w, "location.search"))
	w.show("/topic?topic=" + url.QueryEscape(free))
	throttletest.Until(t, "the topic has it, too", func() bool { return slices.Equal(want, w.cells(key)) })
	w.show("/topic?topic=" + url.QueryEscape("kafka://shop/web/clicks"))
	w.until("Dispatched against the limit")
	throttletest.Until(t, "the topic is shown", func() bool { return strings.Contains(w.text(), "10/s") })
	assert.Empty(t, w.cells(key))
	w.check()
}

// TestManySubscriptions: of a topic with very many, those are shown that wait hardest.
func TestManySubscriptions(t *testing.T) {
	t.Parallel()
	s := open(t)
	const hardest = "s777"
	s.publish("crafted", func(second int64) (all []dispatch.SubscriptionStats) {
		for i := range 1000 {
			sub := used(mixed, fmt.Sprintf("s%03d", i), 10, second)
			if sub.Subscription == hardest {
				sub.Waiting = 5
			}
			all = append(all, sub)
		}
		return all
	})
	w := look(t, s)
	w.show("/topic?topic=" + url.QueryEscape(mixed))
	w.until("and 900 more, which wait less hard")
	names := eval[[]string](w, `[...document.querySelectorAll("[aria-label=Subscriptions] tbody tr")].map(r => r.cells[0].innerText)`)
	assert.Len(t, names, 100)
	assert.Equal(t, hardest, names[0])
	assert.Less(t, eval[int](w, `document.querySelectorAll("*").length`), 6000)
	w.show("/")
	throttletest.Until(t, "five are in the overview", func() bool {
		c := w.cells(mixed)
		return len(c) > 9 && strings.HasPrefix(c[9], hardest+" ") && strings.HasSuffix(c[9], "\nand 995 more")
	})
	w.check()
}

// TestStacked: in a stacked plot, each line is on top of those before, and what is said of it is
// its own value.
func TestStacked(t *testing.T) {
	w := look(t, open(t))
	w.show("/history")
	got := await[struct {
		Names []string
		Drawn [][]float64
		Own   map[string]float64
	}](w, `import("/page/plots.js").then(({ Plots, limitColor }) => {
		const p = new Plots([{ title: "t", stacked: true, lines: d => [...(d.rates || new Map()), ["limit", d.limit, limitColor]] }]);
		document.body.append(p.element);
		p.add({ times: [1, 2], limit: [100, 100], rates: [{ name: "a", values: [1, 2] }, { name: "b", values: [10, 20] }] });
		const c = p.charts[0];
		return { names: c.chart.series.slice(1).map(s => s.label), drawn: c.chart.data.slice(1), own: c.figure.plotted() };
	})`)
	assert.Equal(t, []string{"b", "a", "limit"}, got.Names, "the topmost first, since each covers those below")
	assert.Equal(t, [][]float64{{11, 22}, {1, 2}, {100, 100}}, got.Drawn)
	assert.Equal(t, map[string]float64{"time": 2, "a": 2, "b": 20, "limit": 100}, got.Own)
	w.check()
}

// TestFewLines: of many lines, those stay that are the largest or nearly so, with their colors.
// Fields of points that are no lists are ignored.
func TestFewLines(t *testing.T) {
	w := look(t, open(t))
	w.show("/history")
	type drawn struct{ Names, Colors []string }
	got := await[[]drawn](w, `import("/page/plots.js").then(({ Plots }) => {
		const p = new Plots([{ title: "t", lines: d => [...(d.rates || new Map())] }]);
		document.body.append(p.element);
		const seen = [];
		const add = (time, ...values) => {
			p.add({ times: [time], more: 20, rates: values.map((v, i) => ({ name: "abcdefghi"[i], values: [v] })) });
			const series = p.charts[0].chart.series.slice(1);
			seen.push({ names: series.map(s => s.label), colors: series.map(s => s.stroke()) });
		};
		add(1, 9, 8, 7, 6, 5, 4, 3);
		add(2, 9, 8, 7, 6, 5, 4, 3, 2, 1);
		add(3, 0, 0, 0, 0, 0, 0, 3, 0, 0);
		add(4, 0, 0, 0, 0, 0, 0, 70, 0, 0);
		add(5, 0, 0, 0, 0, 0, 0, 0, 50, 0);
		return seen;
	})`)
	require.Len(t, got, 5)
	few := []string{"a", "b", "c", "d", "e", "f", "3 others"}
	assert.Equal(t, []string{"a", "b", "c", "d", "e", "f", "g"}, got[0].Names)
	assert.Equal(t, drawn{few, got[0].Colors}, got[1])
	assert.Equal(t, got[1], got[2], "g has 9, and f 8")
	assert.Equal(t, []string{"a", "b", "c", "d", "e", "g", "3 others"}, got[3].Names)
	assert.Equal(t, got[0].Colors, got[3].Colors, "g has the color that f had")
	assert.Equal(t, []string{"a", "b", "c", "d", "g", "h", "3 others"}, got[4].Names)
	assert.Equal(t, []string{got[3].Colors[5], got[3].Colors[4]}, got[4].Colors[4:6], "g has its own, and h that of e")
	w.check()
}
