package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// table returns the texts of a table, by its caption.
func (w *world) table(caption string) [][]string {
	w.t.Helper()
	return eval[[][]string](w, `[...document.querySelectorAll("[aria-label='`+caption+`'] tbody tr")].map(r => [...r.cells].map(c => c.innerText))`)
}

// command returns the command with a label, as it would be copied; "" without it.
func (w *world) command(label string) string {
	w.t.Helper()
	return eval[string](w, `([...document.querySelectorAll(".command")].find(c => c.querySelector(".label").textContent === `+quoted(label)+`)?.querySelector("pre").textContent ?? "")`)
}

// runCopied runs a command that the page has shown, with a reason of its own.
func (w *world) runCopied(command string) {
	w.t.Helper()
	before, _, _ := strings.Cut(command, " -m '")
	fields := strings.Fields(before)
	require.NotEmpty(w.t, fields, "the page has no such command")
	require.Equal(w.t, "throttle-admin", fields[0])
	w.admin(append(fields[1:], "--as", "bob", "-m", "copied from the page")...)
}

// TestOperator: somebody finds a fault, reads a topic's policy and replicas, runs the commands that
// the page has, sees them as marks in all plots and in the history, and undoes them.
func TestOperator(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish(dispatch.Stats{Replica: "cut-off", Time: time.Now().UnixMilli(), PolicyError: "no leader"}, time.Hour)
	w.show("/")
	throttletest.Until(t, "the strip has the fault", func() bool {
		return strings.Contains(eval[string](w, "document.querySelector('.strip').innerText"), "replica cut-off: no leader")
	})
	assert.Regexp(t, `^\d faults?: `, eval[string](w, "document.querySelector('.strip').innerText"))
	assert.Equal(t, "/health", eval[string](w, "document.querySelector('.strip a').pathname"))

	w.show(topicPage)
	eval[int](w, `(window.drawn = [], (draw => CanvasRenderingContext2D.prototype.fillText = function(text, ...at) {
		window.drawn.push([[...document.querySelectorAll("canvas")].indexOf(this.canvas), text]);
		return draw.call(this, text, ...at);
	})(CanvasRenderingContext2D.prototype.fillText), 1)`)
	throttletest.Until(t, "it is plotted", func() bool { return w.plotted("limit") == 100 })
	throttletest.Until(t, "it has its policy", func() bool { return len(w.table("Policy")) > 0 && len(w.table("Replicas")) == 4 })
	assert.Contains(t, w.table("Policy"), []string{"messageRate", "100/s", "", orders})
	subscriptions := map[string]int{}
	for _, r := range w.table("Replicas") {
		subscriptions[r[1]]++
		assert.NotEmpty(t, r[0])
		assert.NotEmpty(t, r[2], "its state")
	}
	assert.Equal(t, map[string]int{"alerts": 2, "billing": 2}, subscriptions)
	assert.Equal(t, "throttle-admin set-msg-rate "+orders+" 100/s -m 'why'", w.command("Change"))
	assert.Equal(t, "throttle-admin set-msg-rate "+orders+" 100/s --dry-run", w.command("Preview"))
	assert.Equal(t, "throttle-admin set "+orders+" messageRate=100/s --for 1h -m 'why'", w.command("For an hour"))
	assert.Empty(t, w.command("Resume"))
	assert.Equal(t, "throttle-admin pause "+orders+" --for 10m", w.command("Pause"))
	w.runCopied(w.command("Pause"))
	throttletest.Until(t, "it can be resumed", func() bool { return w.command("Resume") == "throttle-admin resume "+orders })
	assert.Empty(t, w.command("Pause"))
	w.runCopied(w.command("Resume"))
	throttletest.Until(t, "it can be paused", func() bool { return w.command("Pause") != "" })
	w.runCopied(strings.Replace(w.command("Change"), "100/s", "150/s", 1))
	throttletest.Until(t, "the new limit is in force", func() bool { return w.plotted("limit") == 150 })
	const mark = "bob: copied from the page"
	throttletest.Until(t, "the marks are drawn in all plots", func() bool {
		return eval[int](w, `new Set(window.drawn.filter(([, text]) => text === `+quoted(mark)+`).map(([canvas]) => canvas)).size`) == 4
	})
	throttletest.Until(t, "and told to those who do not see them", func() bool {
		labels := eval[[]string](w, `[...document.querySelectorAll("figure canvas")].map(c => c.getAttribute("aria-label"))`)
		return len(labels) == 4 && !slices.ContainsFunc(labels, func(l string) bool { return strings.Count(l, mark) != 3 })
	})

	w.show("/history")
	w.until("100/s → 150/s")
	assert.Regexp(t, orders+` paused: not pinned → true, pinned until \S`, w.text())
	assert.Regexp(t, orders+` paused: true, pinned until \S.* → not pinned`, w.text())
	revision := eval[string](w, "/revision (\\d+)/.exec(document.querySelector('article').innerText)[1]")
	older := eval[string](w, "/revision (\\d+)/.exec([...document.querySelectorAll('article')].at(-1).innerText)[1]")
	assert.Equal(t, "throttle-admin rollback "+revision, w.command("Roll back"))
	assert.Equal(t, "throttle-admin rollback "+revision+" --dry-run", w.command("Preview the rollback"))
	assert.Equal(t, "throttle-admin history show "+revision, w.command("Show"))
	difference := func(revision string) string {
		return eval[string](w, fmt.Sprintf(`(d => (d.open = true, d.querySelector(".difference").innerText))(document.querySelector("details[data-revision='%s']"))`, revision))
	}
	throttletest.Until(t, "nothing differs from the newest", func() bool {
		return difference(revision) == "Nothing differs now from what was stored after this change."
	})
	throttletest.Until(t, "the limit differs from the oldest", func() bool {
		return strings.Contains(difference(older), "Now, against what was stored after this change:") && strings.Contains(difference(older), "100/s → 150/s")
	})
	got, err := http.Get(w.url + "/api/diff?revision=" + older)
	require.NoError(t, err)
	defer func() { _ = got.Body.Close() }()
	var diff struct {
		Changes []struct{ Scope, Field, Before, After string }
	}
	require.NoError(t, json.NewDecoder(got.Body).Decode(&diff))
	require.Len(t, diff.Changes, 1)
	assert.Equal(t, struct{ Scope, Field, Before, After string }{orders, "messageRate", "100/s", "150/s"}, diff.Changes[0])

	w.runCopied(w.command("Roll back"))
	throttletest.Until(t, "all that is open is compared again", func() bool {
		return strings.Contains(difference(older), "Nothing differs now") && strings.Contains(difference(revision), "150/s → 100/s")
	})
	w.quotas()
	w.check()
}

// quotas looks at what a ratekeeper has published.
func (w *world) quotas() {
	s := ratekeeper.Status{
		Keeper: "k", Term: 3, Replicas: 2,
		Decisions: []quota.Decision{{ID: "tag:bulk", Rate: 90, Cost: 40_960, Reserved: 10, Desired: 200, Limiting: 50, Target: 50, Smoothed: 60, Busy: true}},
		Readers:   []quota.Reader{{Backend: "db", Zone: "b", ID: "tag:bulk", Cost: 4096, Busyness: 0.4, Ratio: 0.5}},
		Backends: []quota.Backend{
			{Backend: "db", Zone: "b", Load: quota.Load{Queue: 1600, Target: 800, Spring: 200}, Cost: 10_240, Ratio: 0.5, Age: 2},
			{Backend: "cache", Zone: "a", Load: quota.Load{Queue: 80, Target: 800, Spring: 200}, Age: 1},
			{Backend: "mute", Zone: "a"},
		},
	}
	for n := range 100 {
		s.Backends = append(s.Backends, quota.Backend{Backend: fmt.Sprintf("x%03d", n), Zone: "c"})
	}
	text, err := json.Marshal(s)
	require.NoError(w.t, err)
	store, err := throttle.OpenPermits(w.permits)
	require.NoError(w.t, err)
	require.NoError(w.t, store.Publish(w.t.Context(), permits.RatekeeperOf("eu"), "k", text, time.Hour))
	require.NoError(w.t, store.Close())
	w.show("/quotas")
	w.until("The ratekeeper k leads, in term 3; 2 replicas report.")
	assert.Equal(w.t, [][]string{{"tag:bulk", "90/s", "41 kB/s", "10/s", "200/s", "50/s", "50/s", "60/s", "yes"}}, w.table("Decisions"))
	backends := w.table("Backends")
	require.Len(w.t, backends, 100)
	assert.Equal(w.t, []string{"db", "b", "1600", "800", "200 %", "10.2 kB/s", "0.5 times its load", "2 s ago"}, backends[0])
	assert.Equal(w.t, []string{"cache", "a", "80", "800", "10 %", "0 B/s", "more", "1 s ago"}, backends[1])
	assert.Equal(w.t, []string{"mute", "a", "unknown", "unknown", "unknown", "0 B/s", "more"}, backends[2][:7])
	assert.Contains(w.t, w.text(), "and 3 that are less loaded")
	assert.Equal(w.t, [][]string{{"db", "b", "tag:bulk", "4096 B/s", "40 %", "0.5 times its load"}}, w.table("Ids that load backends"))
	throttletest.Until(w.t, "the loads are plotted", func() bool {
		return eval[float64](w, `([...document.querySelectorAll("figure")].at(-1)?.plotted?.().db ?? 0)`) == 2
	})
}
