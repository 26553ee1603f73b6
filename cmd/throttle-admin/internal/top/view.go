package top

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/internal/printable"
)

// The lines above and below the rows.
const (
	headLines = 3 // what the cluster is like, what is wrong, the columns
	footLines = 1
)

// Colours that can be told apart by those who are colour-blind, on a dark and on a light ground.
var (
	bold   = lipgloss.NewStyle().Bold(true)
	faint  = lipgloss.NewStyle().Faint(true)
	cursor = lipgloss.NewStyle().Reverse(true)
	colors = map[cluster.Condition]lipgloss.Style{
		cluster.Unavailable: lipgloss.NewStyle().Foreground(lipgloss.Color("#D55E00")).Bold(true),
		cluster.Throttled:   lipgloss.NewStyle().Foreground(lipgloss.Color("#D55E00")).Bold(true),
		cluster.Paused:      lipgloss.NewStyle().Foreground(lipgloss.Color("#CC79A7")),
		cluster.Stale:       lipgloss.NewStyle().Foreground(lipgloss.Color("#E69F00")),
		cluster.Flowing:     lipgloss.NewStyle().Foreground(lipgloss.Color("#009E73")),
		cluster.CaughtUp:    lipgloss.NewStyle().Foreground(lipgloss.Color("#0072B2")),
		cluster.Unpublished: faint,
		cluster.Idle:        faint,
	}
)

// View implements tea.Model.
func (m *model) View() tea.View {
	head, rows := m.parts()
	body := append(head, m.onView(rows, m.room(head))...)
	body = body[:min(len(body), max(0, m.height-footLines))]
	for len(body) < m.height-footLines {
		body = append(body, "")
	}
	body = append(body, m.foot())
	for i, line := range body {
		body[i] = ansi.Truncate(line, m.width, "")
	}
	v := tea.NewView(strings.Join(body, "\n"))
	v.AltScreen = true
	return v
}

// parts returns the lines of the page: those at its head, and those that scroll below it.
func (m *model) parts() (head, rows []string) {
	switch m.page {
	case oneTopic:
		return m.topicLines(), m.subscriptionLines()
	case text:
		return []string{bold.Render(fit(m.title, m.width)), ""}, m.textLines()
	}
	return m.overviewLines(), nil
}

// room is how many lines fit below the head of the page.
func (m *model) room(head []string) int { return m.height - footLines - len(head) }

// minName is the room for a name, below which a question is shorter.
const minName = 8

// foot is the last line: a question, the filter, the result of a command, or the keys.
func (m *model) foot() string {
	switch q := m.top.query; {
	case m.ask != "":
		before, after := "Pause ", " until it is resumed? y/N"
		if m.width < len(before)+len(after)+minName {
			after = "? y/N"
		}
		return bold.Render(before + pad(m.ask, min(len(m.ask), m.width-len(before)-len(after)), true) + after)
	case m.typing:
		return fit("filter: "+q.Filter+"_", m.width)
	case m.note != "":
		return fit(m.note, m.width)
	case m.page == overview:
		order := "sorted by " + q.Sort
		if q.Reverse {
			order += ", reversed"
		}
		if q.Filter != "" {
			order += fmt.Sprintf(", %d with %q", m.data.Matching, q.Filter)
		}
		return faint.Render(fit(order+"   ? keys   / filter   s sort   enter open   e explain   p pause   q quit", m.width))
	}
	if m.page == text {
		return faint.Render(fit("esc back   q quit", m.width))
	}
	return faint.Render(fit("esc back   e explain   p pause   q quit", m.width))
}

// head says how the cluster is, and what is wrong.
func (m *model) head() []string {
	title := m.top.app.Cluster
	if !m.status.Unread {
		title += "  " + summary(m.data)
	}
	return []string{bold.Render(fit(title, m.width)), colors[cluster.Throttled].Render(fit(wrong(m.status, m.data.Time), m.width))}
}

// A column of the overview.
type column struct {
	title string
	width int // 0: what is left
	from  int // shown in terminals that are as wide
	cell  func(r cluster.Row, now time.Time) string
}

var overviewColumns = []column{
	{"TOPIC", 0, 0, func(r cluster.Row, _ time.Time) string { return r.Topic }},
	{"CONDITION", 13, 27, func(r cluster.Row, _ time.Time) string { return string(r.Condition) }},
	{"RATE", 11, 44, func(r cluster.Row, _ time.Time) string { return rate(r.Rate, r.Limit, r.Uncounted) }},
	{"LIMIT", 9, 64, func(r cluster.Row, _ time.Time) string { return limit(r) }},
	{"WAIT P99", 8, 100, func(r cluster.Row, _ time.Time) string { return waitP99(r) }},
	{"BACKLOG", 8, 52, func(r cluster.Row, _ time.Time) string { return number(r.Backlog) }},
	{"BEHIND", 8, 110, func(r cluster.Row, now time.Time) string { return behind(r, now) }},
	{"DRAINED", 8, 76, func(r cluster.Row, _ time.Time) string { return drained(r) }},
	{"REPLICAS", 8, 120, func(r cluster.Row, _ time.Time) string { return fmt.Sprint(r.Replicas) }},
}

func (m *model) overviewLines() []string {
	left := m.width
	var shown []column
	for _, c := range overviewColumns {
		if m.width >= c.from {
			shown = append(shown, c)
			left -= c.width + 1
		}
	}
	line := func(cell func(column) string) (texts []string) {
		for _, c := range shown {
			width, text := c.width, cell(c)
			if width == 0 {
				width = max(8, left+1)
			}
			texts = append(texts, pad(text, width, c.width == 0))
		}
		return texts
	}
	lines := append(append(m.head(), m.aggregateLines()...), faint.Render(strings.Join(line(func(c column) string { return c.title }), " ")))
	for i, r := range m.data.Rows {
		cells := line(func(c column) string { return c.cell(r, m.data.Time) })
		if i == m.cursor {
			lines = append(lines, cursor.Render(strings.Join(cells, " ")))
			continue
		}
		if len(cells) > 1 {
			cells[1] = colors[r.Condition].Render(cells[1])
		}
		lines = append(lines, strings.Join(cells, " "))
	}
	if len(m.data.Rows) == 0 && !m.status.Unread {
		lines = append(lines, "no topic "+map[bool]string{true: "is published by a replica", false: "matches"}[m.top.query.Filter == ""])
	}
	return lines
}

// maxAggregates is how many limits of several topics have a line.
const maxAggregates = 3

// aggregateLines are those of the limits of several topics that most calls wait for.
func (m *model) aggregateLines() (lines []string) {
	for _, a := range m.data.Aggregates[:min(len(m.data.Aggregates), maxAggregates)] {
		text := fmt.Sprintf("%s: %s, %s of %s, %d waiting, throttles %d of %s", a.Scope, a.Condition, aggregateRate(a), limitRate(a.Limit),
			a.Waiting, a.Throttled, cli.Count(a.Topics, "topic"))
		lines = append(lines, colors[a.Condition].Render(fit(text, m.width)))
	}
	return lines
}

func (m *model) topicLines() []string {
	lines := m.head()
	lines = append(lines, bold.Render(fit(m.topic, m.width)))
	if !m.known {
		return append(lines, "", "no replica has published it in the last hour")
	}
	r := m.row
	add := func(label, format string, args ...any) {
		lines = append(lines, fit(fmt.Sprintf("%-10s %s", label, fmt.Sprintf(format, args...)), m.width))
	}
	add("condition", "%s", condition(r.Condition, r.Since, m.data.Time))
	add("rate", "%s of %s (%s)", rate(r.Rate, r.Limit, r.Uncounted), limit(r), r.Limit.Reason)
	add("backlog", "%s, behind for %s, drained in %s", number(r.Backlog), behind(r, m.data.Time), drained(r))
	add("waits", "%s calls now, 99 %% up to %s", number(r.Waiting), waitP99(r))
	add("replicas", "%d", r.Replicas)
	add("", "%s", sparkline(m.rates, r.Limit.Rate, m.width-11))
	lines = append(lines, "", faint.Render(fit(fmt.Sprintf("%-24s %-10s %-11s %-7s %s",
		"SUBSCRIPTION", "CONDITION", "RATE", "SHARE", ""), m.width)))
	return lines
}

// subscriptionLines are those of the topic's subscriptions, the one that waits hardest first.
func (m *model) subscriptionLines() (lines []string) {
	if !m.known {
		return nil
	}
	for _, s := range m.row.Subscriptions {
		name := s.Subscription
		if s.Owner != "" {
			name += " " + s.Owner
		}
		counted := rate(s.Rate, s.Limit, s.Uncounted)
		share := unknown
		switch {
		case s.Uncounted:
			share = "-"
		case s.Share.Known():
			share = fmt.Sprintf("%.0f %%", 100*s.Share)
		}
		line := pad(name, 24, true) + " " + colors[s.Condition].Render(pad(string(s.Condition), 10, false)) +
			" " + pad(counted, 11, false) + " " + pad(share, 7, false) + " " + bar(s.Share, m.width-57)
		lines = append(lines, line)
		if s.Reason != "" {
			lines = append(lines, faint.Render(fit("  waits: "+string(s.Reason), m.width)))
		}
	}
	return lines
}

func (m *model) textLines() (lines []string) {
	for _, line := range m.lines {
		lines = append(lines, fit(line, m.width))
	}
	return lines
}

// onView returns the rows that fit, from where the page is scrolled to. If not all of the rest fit,
// the last line says how many more there are.
func (m *model) onView(rows []string, room int) []string {
	rest := rows[max(0, min(m.scroll, len(rows)-room)):]
	if len(rest) <= room || room < 1 {
		return rest
	}
	more := fmt.Sprintf("and %d lines more: down, page down", len(rest)-room+1)
	return append(slices.Clone(rest[:room-1]), faint.Render(fit(more, m.width)))
}

// fit returns a text on one line, cut to a width.
func fit(s string, width int) string { return ansi.Truncate(printable.Line(s), max(0, width), "…") }

// pad is fit, filled with spaces. Of names, the end is kept.
func pad(s string, width int, name bool) string {
	s, width = printable.Line(s), max(0, width)
	if n := ansi.StringWidth(s); name && n > width {
		s = ansi.TruncateLeft(s, n-width+1, "…")
	}
	s = ansi.Truncate(s, width, "…")
	return s + strings.Repeat(" ", max(0, width-ansi.StringWidth(s)))
}

// bar draws a part of 0 to 1.
func bar(part cluster.Number, width int) string {
	if !part.Known() || width < 1 {
		return ""
	}
	return strings.Repeat("█", int(math.Round(max(0, min(1, float64(part)))*float64(width))))
}

// sparkline draws the last rates; the highest bar is the limit, or a higher rate.
func sparkline(rates []cluster.Number, limit float64, width int) string {
	rates = rates[max(0, len(rates)-max(0, width)):]
	top := limit
	for _, r := range rates {
		top = max(top, float64(cluster.Number(0).Most(r)))
	}
	levels := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, r := range rates {
		if !r.Known() || top <= 0 {
			b.WriteRune(' ')
			continue
		}
		b.WriteRune(levels[min(len(levels)-1, int(float64(r)/top*float64(len(levels))))])
	}
	return b.String()
}
