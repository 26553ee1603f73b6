package top

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// open returns a model of 50 topics, of which t07 waits most.
func open(t *testing.T, more ...dispatch.SubscriptionStats) *model {
	store := memory.New()
	s := dispatch.Stats{Replica: "r", Cluster: "c", Time: 1, Subscriptions: more}
	for n := range 50 {
		waiting := 0
		if n%10 == 7 {
			waiting = 512 >> (n / 10)
		}
		s.Subscriptions = append(s.Subscriptions, dispatch.SubscriptionStats{
			Topic: fmt.Sprintf("kafka://public/default/t%02d", n), Subscription: "billing", Waiting: waiting, Backlog: int64(n),
			Limits: []dispatch.LimitStats{{Key: "k", Reason: dispatch.ReasonMessages, Rate: 100}},
		})
	}
	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, store.Publish(t.Context(), "c", "r", text, time.Hour))
	reader := cluster.NewReader(store, "c", time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		reader.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	throttletest.Until(t, "the record is read", func() bool {
		o, _ := reader.Overview(cluster.Query{})
		return o.Totals.Topics > 0
	})
	app := &cli.App{
		Cluster: "c", Output: "table", PoliciesURL: "file:" + filepath.Join(t.TempDir(), "p.yaml?create=true"),
	}
	m := &model{ctx: t.Context(), top: &top{app: app, reader: reader, query: cluster.Query{Sort: "throttled"}}, width: 80, height: 24}
	m.Init()
	return m
}

// press presses keys, and runs what follows from them.
func press(m *model, keys ...string) {
	for _, key := range keys {
		msg := tea.KeyPressMsg{Text: key}
		switch key {
		case "enter":
			msg = tea.KeyPressMsg{Code: tea.KeyEnter}
		case "esc":
			msg = tea.KeyPressMsg{Code: tea.KeyEscape}
		case "down":
			msg = tea.KeyPressMsg{Code: tea.KeyDown}
		case "up":
			msg = tea.KeyPressMsg{Code: tea.KeyUp}
		case "pgdown":
			msg = tea.KeyPressMsg{Code: tea.KeyPgDown}
		case "backspace":
			msg = tea.KeyPressMsg{Code: tea.KeyBackspace}
		default:
			msg.Code = []rune(key)[0]
		}
		if _, cmd := m.Update(msg); cmd != nil {
			m.Update(cmd())
		}
	}
}

// screen is what the terminal shows.
func screen(m *model) string { return ansi.Strip(m.View().Content) }

func TestOverviewPage(t *testing.T) {
	m := open(t)
	lines := strings.Split(screen(m), "\n")
	assert.Contains(t, lines[0], "50 topics, 5 throttled, 45 flowing")
	assert.Regexp(t, `^kafka://public/default/t07 +throttled +unknown +100/s +7 +- *$`, lines[3])
	assert.Regexp(t, `/t17 +throttled `, lines[4])
	press(m, "down", "enter")
	assert.Contains(t, screen(m), "kafka://public/default/t17\n")
	assert.Contains(t, screen(m), "waits      256 calls now")
	press(m, "esc")
	press(m, "s", "pgdown", "pgdown")
	assert.Contains(t, screen(m), "/t49")
	assert.Contains(t, screen(m), "by topic")
	press(m, "up", "up", "up", "up", "up", "up", "up", "up", "up", "up", "up")
	assert.NotContains(t, screen(m), "/t49", "the page before")
	press(m, "/", "t", "1", "x", "backspace", "enter")
	assert.Contains(t, screen(m), "10 with \"t1\"")
	assert.Contains(t, screen(m), "50 topics, 5 throttled", "the totals stay")
	press(m, "esc")
	assert.Contains(t, screen(m), "/t00")
	press(m, "?")
	assert.Contains(t, screen(m), "turn the page")
	press(m, "esc", "r")
	assert.Contains(t, strings.Split(screen(m), "\n")[3], "/t49")
}

// TestAggregateLines: limits of several topics have lines above the topics, which fit in what is
// left of the screen.
func TestAggregateLines(t *testing.T) {
	var more []dispatch.SubscriptionStats
	for i := range 5 {
		tenant := fmt.Sprintf("tenant%d", i)
		s := dispatch.SubscriptionStats{
			Topic: "kafka://" + tenant + "/default/t", Subscription: "billing", Backlog: -1,
			Limits: []dispatch.LimitStats{{
				Key: permits.LimitKey("c", policy.TenantScope(tenant), false), Reason: dispatch.ReasonTenantMessages, Rate: 1000,
			}},
		}
		if i == 3 {
			s.Waiting, s.Reason = 2, dispatch.ReasonTenantMessages
		}
		more = append(more, s)
	}
	m := open(t, more...)
	lines := strings.Split(screen(m), "\n")
	assert.Equal(t, "tenant:tenant3: throttled, unknown of 1000/s, 2 waiting, throttles 1 of 1 topic", strings.TrimSpace(lines[2]))
	assert.Equal(t, "tenant:tenant0: flowing, unknown of 1000/s, 0 waiting, throttles 0 of 1 topic", strings.TrimSpace(lines[3]))
	assert.Regexp(t, "^tenant:tenant1: ", lines[4])
	assert.Regexp(t, "^TOPIC ", lines[5])
	assert.Equal(t, 17, strings.Count(screen(m), "kafka://"), "a row in each line that is left")
	assert.Len(t, m.data.Rows, 17, "and no row below the screen")
	press(m, "/", "t", "e", "n", "a", "n", "t", "4", "enter")
	lines = strings.Split(screen(m), "\n")
	assert.Regexp(t, "^tenant:tenant4: ", lines[2])
	assert.Regexp(t, "^TOPIC ", lines[3])
	press(m, "esc")
	assert.Equal(t, 17, strings.Count(screen(m), "kafka://"))

	var out strings.Builder
	table(&out, m.data, m.status)
	assert.Regexp(t, `\nLIMIT OF SEVERAL TOPICS +CONDITION +RATE .*\ntenant:tenant3 +throttled +unknown +1000/s +2 +1 +1\n`, out.String())
}

// TestNotCounted: of two topics that have caught up, the one that is charged to its limit has a
// rate.
func TestNotCounted(t *testing.T) {
	caughtUp := func(name string, bypassed bool) dispatch.SubscriptionStats {
		return dispatch.SubscriptionStats{
			Topic: "kafka://public/default/" + name, Subscription: "billing", CaughtUp: true,
			Limits: []dispatch.LimitStats{{Key: "k", Reason: dispatch.ReasonMessages, Rate: 100, Bypassed: bypassed}},
		}
	}
	m := open(t, caughtUp("free", true), caughtUp("paid", false))
	press(m, "/", "c", "a", "u", "g", "h", "t", "enter")
	assert.Regexp(t, `/free +caught up +not counted +100/s `, screen(m))
	assert.Regexp(t, `/paid +caught up +unknown +100/s `, screen(m), "of one record")
	press(m, "enter")
	assert.Regexp(t, `rate +not counted of 100/s `, screen(m))
	assert.Regexp(t, `billing +caught up +not counted`, screen(m))
}

// TestUnknownCells: what is not known looks different from what is 0.
func TestUnknownCells(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	unknown := cluster.Row{
		Topic: "t", Condition: cluster.Stale, Since: now.Add(-time.Minute), Rate: cluster.Unknown, Waiting: cluster.Unknown,
		Backlog: cluster.Unknown, DrainedIn: cluster.Unknown, WaitP99: cluster.Unknown,
	}
	assert.Equal(t, []string{"t", "stale for 1m", "unknown", "unknown", "unknown", "unknown", "unknown", "unknown", "0"}, cells(unknown, now))
	none := cluster.Row{Topic: "t", Condition: cluster.Idle, Unlimited: true, NotBehind: true, Replicas: 2}
	assert.Equal(t, []string{"t", "idle", "0/s", "none", "none", "0", "-", "-", "2"}, cells(none, now))
	behind := cluster.Row{Topic: "t", Condition: cluster.Throttled, BehindSince: now.Add(-time.Second), DrainedIn: cluster.Unknown, Several: true, Uncounted: true}
	assert.Equal(t, []string{"t", "throttled", "not counted", "several", "none", "0", "1s", "unknown", "0"}, cells(behind, now))
}

// TestSizes: whatever the size of the terminal and the names, each page fits, and no name acts on
// the terminal.
func TestSizes(t *testing.T) {
	hostile := "kafka://public/default/\x1b[2J\u202e<script>\x07\t\n漢字" + strings.Repeat("x", 10_000)
	m := open(t, dispatch.SubscriptionStats{
		Topic: hostile, Subscription: hostile, Owner: hostile, Waiting: 1000, Reason: dispatch.Reason(hostile), Backlog: -1,
	})
	for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}, {10, 5}, {1, 1}} {
		m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for _, keys := range [][]string{{"down", "up"}, {"enter"}, {"esc", "/", "漢", "enter"}, {"esc", "?"}, {"esc", "p"}, {"n"}} {
			press(m, keys...)
			lines := strings.Split(screen(m), "\n")
			assert.Len(t, lines, size[1], "%v %v", size, keys)
			for _, line := range lines {
				assert.LessOrEqual(t, ansi.StringWidth(line), max(size[0], 1), "%v %v: %q", size, keys, line)
				for _, r := range line {
					assert.True(t, unicode.IsPrint(r), "%v: %q in %q", size, r, line)
				}
			}
		}
	}
}

// TestPause: p pauses the topic that the question names, but not without a yes.
func TestPause(t *testing.T) {
	m := open(t)
	press(m, "p")
	assert.Contains(t, screen(m), "Pause kafka://public/default/t07 until it is resumed? y/N")
	press(m, "q")
	assert.Contains(t, screen(m), "nothing was changed")
	m.Update(tea.WindowSizeMsg{Width: 42, Height: 10})
	press(m, "p")
	assert.Contains(t, screen(m), "/t07 until it is resumed? y/N", "a name is cut, not the question")
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	m.top.query.Sort = "topic" // the rows move while the question is on the screen
	m.at = ""
	m.Update(ticked{})
	assert.NotContains(t, strings.Split(screen(m), "\n")[3], "/t07")
	press(m, "y")
	assert.Contains(t, screen(m), "pause kafka://public/default/t07: done")
	press(m, "e")
	assert.Contains(t, screen(m), "explain kafka://public/default/t00")
	press(m, "esc", "down", "down", "down", "down", "down", "down", "down")
	m.top.query.Sort = "backlog"
	m.top.query.Reverse, m.top.query.Filter = true, "7" // the rows move under the cursor
	m.Update(ticked{})
	press(m, "e")
	assert.Contains(t, screen(m), "explain kafka://public/default/t07")
	assert.Contains(t, screen(m), "paused")
	press(m, "esc")
	assert.Contains(t, screen(m), "sorted by backlog")
}

// TestNoTopics: a name from a store that is a scope of many topics, or a flag, is not acted on.
func TestNoTopics(t *testing.T) {
	for _, name := range []string{"cluster", "public/default", "tenant:public", "--help", "pattern:.*", "kafka://public/default/"} {
		m := open(t, dispatch.SubscriptionStats{Topic: name, Subscription: "s", Waiting: 1_000_000, Backlog: -1})
		press(m, "p", "y")
		assert.Contains(t, screen(m), "pause "+name+": that is no topic")
		press(m, "e")
		assert.Contains(t, screen(m), "explain "+name+": that is no topic")
	}
}

// TestWrong: what cannot be reached comes first, also if the line has no room for the reasons.
func TestWrong(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	status := cluster.Status{}
	assert.Empty(t, wrong(status, now))
	status.Policies = cluster.Outage{Since: now.Add(-3 * time.Second), Error: "no leader"}
	assert.Equal(t, "policy store not reached for 3s: no leader", wrong(status, now))
	status.Outage = cluster.Outage{Since: now.Add(-time.Minute), Error: "refused"}
	assert.Equal(t, "policy store not reached for 3s; permit store not reached for 1m, the values are as old: no leader; refused", wrong(status, now))
	status.Policies, status.Unread = cluster.Outage{}, true
	assert.Equal(t, "permit store not reached yet: refused", wrong(status, now))
	assert.Equal(t, "nothing has been read yet", wrong(cluster.Status{Unread: true}, now))
	assert.Equal(t, "the record of r", wrong(cluster.Status{Unreadable: "the record of r"}, now))
}

// TestUnread: before the first read, nothing is said about topics.
func TestUnread(t *testing.T) {
	m := &model{
		ctx: t.Context(), width: 80, height: 24,
		top: &top{app: &cli.App{Cluster: "c"}, reader: cluster.NewReader(memory.New(), "c", time.Second), query: cluster.Query{Sort: "throttled"}},
	}
	m.Init()
	assert.Contains(t, screen(m), "nothing has been read yet")
	assert.NotContains(t, screen(m), "no topic")
}

// TestShares: the bars of subscriptions are as long as their shares.
func TestShares(t *testing.T) {
	m := &model{
		ctx: t.Context(), width: 97, height: 24, page: oneTopic, topic: "t", known: true,
		top: &top{app: &cli.App{Cluster: "c"}, query: cluster.Query{Sort: "throttled"}},
		row: cluster.Row{Rate: 100, Subscriptions: []cluster.SubscriptionRow{
			{Subscription: "most", Condition: cluster.Throttled, Rate: 75, Share: 0.75},
			{Subscription: "less", Condition: cluster.Throttled, Rate: 25, Share: 0.25},
			{Subscription: "none", Condition: cluster.Idle, Rate: 0, Share: 0},
			{Subscription: "new", Condition: cluster.Flowing, Rate: cluster.Unknown, Share: cluster.Unknown},
			{Subscription: "free", Condition: cluster.CaughtUp, Rate: cluster.Unknown, Share: cluster.Unknown, Uncounted: true},
		}},
	}
	bars := map[string]string{}
	for line := range strings.SplitSeq(screen(m), "\n") {
		if fields := strings.Fields(line); len(fields) > 2 {
			bars[fields[0]] = line[len(fields[0]):]
		}
	}
	for name, want := range map[string]string{"most": `75/s +75 % +█{30}$`, "less": `25/s +25 % +█{10}$`, "none": `0/s +0 %$`, "new": ` unknown +unknown$`, "free": `not counted +-$`} {
		assert.Regexp(t, want, strings.TrimRight(bars[name], " "), name)
	}
}

// TestScrolled: what does not fit is counted, and can be scrolled to. Keys of the overview do
// nothing.
func TestScrolled(t *testing.T) {
	m := open(t)
	press(m, "down", "enter")
	topic := m.topic
	m.row.Subscriptions = nil
	for n := range 40 {
		m.row.Subscriptions = append(m.row.Subscriptions, cluster.SubscriptionRow{Subscription: fmt.Sprintf("sub%02d", n), Condition: cluster.Flowing})
	}
	shown := screen(m)
	more, _ := strconv.Atoi(regexp.MustCompile(`and (\d+) lines more`).FindStringSubmatch(shown)[1])
	assert.Equal(t, 40-strings.Count(shown, "sub"), more)
	assert.Contains(t, shown, "sub00")
	press(m, "down", "pgdown")
	assert.NotContains(t, screen(m), "sub00")
	assert.Contains(t, screen(m), fmt.Sprintf("sub%02d", 40-more+1))
	for range 9 {
		press(m, "pgdown")
	}
	assert.Contains(t, screen(m), "sub39")
	assert.NotContains(t, screen(m), "lines more")
	press(m, "up")
	assert.Contains(t, screen(m), "and 2 lines more")
	assert.Contains(t, screen(m), "e explain")
	press(m, "?")
	assert.NotContains(t, screen(m), "e explain   p pause", "there is no topic to explain")
	press(m, "esc")
	sort := m.top.query
	press(m, "s", "S", "r")
	assert.Equal(t, sort, m.top.query)
	press(m, "esc")
	assert.Equal(t, topic, m.at)
}

func TestSparkline(t *testing.T) {
	rates := []cluster.Number{0, 50, cluster.Unknown, 100, 200}
	assert.Equal(t, "▁▃ ▅█", sparkline(rates, 100, 20))
	assert.Equal(t, "▅█", sparkline(rates, 100, 2))
	assert.Empty(t, sparkline(nil, 100, 20))
}
