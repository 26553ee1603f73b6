package top

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/explain"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/policy"
)

// live shows the topics in a terminal until the user quits or ctx ends.
func (t *top) live(ctx context.Context) error {
	m := &model{ctx: ctx, top: t, width: 80, height: 24}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(t.app.Stdin), tea.WithOutput(t.app.Stdout),
		tea.WithEnvironment(os.Environ()), tea.WithoutSignalHandler()).Run()
	if errors.Is(err, tea.ErrInterrupted) || ctx.Err() != nil {
		return nil
	}
	return err
}

// A page is what the model shows.
type page int

const (
	overview page = iota
	oneTopic      // m.topic
	text          // m.lines: an explanation, or help
)

// A model is what the terminal shows. Its methods run in one goroutine.
type model struct {
	ctx           context.Context
	top           *top
	width, height int

	page   page
	back   page   // from text
	cursor int    // in the page of rows
	at     string // the topic there, which the cursor follows
	typing bool   // a filter
	before string
	ask    string // the topic that y pauses

	data   cluster.Overview
	status cluster.Status
	topic  string
	row    cluster.Row
	known  bool // m.row is of this topic
	rates  []cluster.Number
	title  string
	lines  []string
	scroll int    // lines above those on view
	note   string // of the last command
}

// A ticked message comes after each time of liveEvery, a done one when a command has run.
type (
	ticked time.Time
	done   struct {
		title, printed string
		err            error
		show           bool // it is a page of its own
	}
)

func tick() tea.Cmd {
	return tea.Tick(liveEvery, func(t time.Time) tea.Msg { return ticked(t) })
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd {
	m.refresh()
	return tick()
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.refresh()
	case ticked:
		m.refresh()
		m.follow()
		return m, tick()
	case done:
		m.finish(msg)
	case tea.PasteMsg:
		if m.typing {
			m.filter(m.top.query.Filter + msg.Content)
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, nil
}

// rows is how many topics fit.
func (m *model) rows() int {
	return max(1, m.height-headLines-footLines-min(len(m.data.Aggregates), maxAggregates))
}

// refresh reads what is on view.
func (m *model) refresh() {
	q := &m.top.query
	for q.Size = 0; q.Size != m.rows(); { // twice if limits take more or fewer lines than before
		q.Size = m.rows()
		m.data, m.status = m.top.reader.Overview(*q)
	}
	q.Page = m.data.Page
	if i := slices.IndexFunc(m.data.Rows, func(r cluster.Row) bool { return r.Topic == m.at }); i >= 0 {
		m.cursor = i
	}
	m.pointAt(m.cursor)
	if m.topic != "" {
		row, _, ok := m.top.reader.Topic(m.topic)
		m.row, m.known = row, ok
	}
}

// pointAt moves the cursor to a row.
func (m *model) pointAt(row int) {
	m.cursor, m.at = max(0, min(row, len(m.data.Rows)-1)), ""
	if len(m.data.Rows) > 0 {
		m.at = m.data.Rows[m.cursor].Topic
	}
}

// maxRates is how many seconds a sparkline goes back.
const maxRates = 600

// follow notes the rate of the topic on view.
func (m *model) follow() {
	if m.topic == "" {
		return
	}
	rate := cluster.Unknown
	if m.known && m.status.Error == "" {
		rate = m.row.Rate
	}
	m.rates = append(m.rates, rate)
	if n := len(m.rates) - maxRates; n > 0 {
		m.rates = slices.Delete(m.rates, 0, n)
	}
}

// press acts on a key.
func (m *model) press(key tea.KeyPressMsg) tea.Cmd {
	name := key.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case m.ask != "":
		topic := m.ask
		m.ask = ""
		if name == "y" {
			return m.execute(false, policies.Commands, topic, "pause", "--reason", "throttle-admin top")
		}
		m.note = "nothing was changed"
		return nil
	case m.typing:
		m.typeFilter(key)
		return nil
	}
	m.note = ""
	switch name {
	case "q":
		return tea.Quit
	case "esc", "backspace", "left":
		m.up()
	case "?":
		m.show("Keys", help)
	case "e":
		if topic := m.selected(); topic != "" {
			return m.execute(true, explain.Commands, topic, "explain")
		}
	case "p":
		if topic := m.selected(); topic != "" {
			m.ask = topic
		}
	default:
		m.move(name)
	}
	return nil
}

var help = `up, down, j, k      select a topic, or scroll
pgup, pgdown        turn the page
enter               open the selected topic
esc                 one level up; in the overview: end the filter
/                   filter: words in the topic, a subscription or the condition
s, S                the next order, or the one before
r                   the other way round
e                   explain the topic
p                   pause the topic, after a question
q                   quit`

// selected is the topic that commands are about; "" without one.
func (m *model) selected() string {
	switch {
	case m.page == oneTopic:
		return m.topic
	case m.page == overview && m.cursor < len(m.data.Rows):
		return m.data.Rows[m.cursor].Topic
	}
	return ""
}

// up goes one level up.
func (m *model) up() {
	switch m.page {
	case text:
		m.page = m.back
	case oneTopic:
		m.page, m.topic, m.rates, m.known = overview, "", nil, false
	case overview:
		m.filter("")
	}
}

func (m *model) show(title, printed string) {
	if m.page != text {
		m.back = m.page
	}
	m.page, m.title, m.scroll = text, title, 0
	m.lines = strings.Split(strings.TrimRight(printed, "\n"), "\n")
}

// move acts on a key that moves the selection, scrolls, or arranges the overview.
func (m *model) move(name string) {
	switch name {
	case "up", "k":
		m.step(-1)
	case "down", "j":
		m.step(1)
	case "pgup", "b":
		m.turn(-1)
	case "pgdown", "space":
		m.turn(1)
	}
	if m.page == overview {
		m.arrange(name)
	}
}

// arrange acts on a key of the overview that opens a topic, filters or sorts.
func (m *model) arrange(name string) {
	q := &m.top.query
	switch name {
	case "enter", "right":
		if topic := m.selected(); topic != "" {
			m.page, m.topic, m.rates, m.scroll = oneTopic, topic, nil, 0
			m.refresh()
		}
	case "/":
		m.typing, m.before = true, q.Filter
	case "s", "S":
		by := 1
		if name == "S" {
			by = len(cluster.Sorts) - 1
		}
		q.Sort = cluster.Sorts[(slices.Index(cluster.Sorts, q.Sort)+by)%len(cluster.Sorts)]
		m.jump(0, 0)
	case "r":
		q.Reverse = !q.Reverse
		m.jump(0, 0)
	}
}

// step moves the cursor, or scrolls, by a line.
func (m *model) step(by int) {
	page, row := m.top.query.Page, m.cursor+by
	switch {
	case m.page != overview:
		m.scrollBy(by)
	case row >= 0 && row < len(m.data.Rows):
		m.pointAt(row)
	case row < 0 && page > 0:
		m.jump(page-1, math.MaxInt)
	case row > 0 && (page+1)*m.top.query.Size < m.data.Matching:
		m.jump(page+1, 0)
	}
}

// turn shows the page before or after.
func (m *model) turn(by int) {
	if m.page != overview {
		head, _ := m.parts()
		m.scrollBy(by * max(1, m.room(head)-1))
		return
	}
	m.jump(m.top.query.Page+by, m.cursor)
}

func (m *model) scrollBy(lines int) {
	head, rows := m.parts()
	m.scroll = max(0, min(m.scroll+lines, len(rows)-m.room(head)))
}

// jump shows a page of topics, with the cursor in a row.
func (m *model) jump(page, row int) {
	m.top.query.Page, m.cursor, m.at = max(0, page), row, ""
	m.refresh()
}

// typeFilter acts on a key while a filter is typed.
func (m *model) typeFilter(key tea.KeyPressMsg) {
	filter := m.top.query.Filter
	switch key.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing = false
		m.filter(m.before)
	case "backspace":
		if runes := []rune(filter); len(runes) > 0 {
			m.filter(string(runes[:len(runes)-1]))
		}
	default:
		m.filter(filter + key.Text)
	}
}

// filter shows what a filter leaves.
func (m *model) filter(words string) {
	m.top.query.Filter = words
	m.jump(0, 0)
}

// execute runs a command about a topic beside the model.
func (m *model) execute(show bool, family cli.Family, topic string, args ...string) tea.Cmd {
	title := args[0] + " " + topic
	if t, err := policy.ParseTopic(topic); err != nil || t.String() != topic {
		m.note = title + ": that is no topic" // but perhaps a scope with many
		return nil
	}
	m.note = "throttle-admin " + title + " ..."
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, cli.StoreTimeout)
		defer cancel()
		printed, err := m.top.app.Execute(ctx, family, "table", append(args, "--", topic)...)
		return done{title, printed, err, show}
	}
}

// finish shows what a command has printed.
func (m *model) finish(d done) {
	m.note = d.title + ": done"
	if d.err != nil {
		m.note = d.title + ": " + d.err.Error()
	}
	if d.show && d.printed != "" {
		m.show(d.title, d.printed)
		if d.err == nil {
			m.note = ""
		}
	}
}
