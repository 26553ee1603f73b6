package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// A screen shows the demo: on a terminal as a live table with the events below it, elsewhere as a
// line each second.
type screen struct {
	out    io.Writer
	redraw bool
	lines  int // of the table on the screen
	events []string
	drawn  time.Duration // when the table was last drawn
}

func newScreen(out io.Writer, plain bool) *screen {
	s := &screen{out: out, drawn: -time.Hour}
	if f, ok := out.(*os.File); ok && !plain && os.Getenv("TERM") != "dumb" {
		info, err := f.Stat()
		s.redraw = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	if s.redraw {
		s.print(hideCursor + wrapOff)
	}
	return s
}

// Escape sequences of terminals.
const (
	hideCursor, showCursor = "\x1b[?25l", "\x1b[?25h"
	wrapOff, wrapOn        = "\x1b[?7l", "\x1b[?7h"
	clearLine              = "\x1b[K"
	bold, dim, plainText   = "\x1b[1m", "\x1b[2m", "\x1b[0m"
	yellow, green          = "\x1b[33m", "\x1b[32m"
)

// Close restores the terminal.
func (s *screen) Close() {
	if s.redraw {
		s.print(wrapOn + showCursor)
	}
}

// say writes a line that is not redrawn.
func (s *screen) say(format string, args ...any) { s.print(fmt.Sprintf(format+"\n", args...)) }

// print ignores errors: the demo may run on unseen.
func (s *screen) print(text string) { _, _ = io.WriteString(s.out, text) }

// event shows an event, on a terminal below the table.
func (s *screen) event(at time.Duration, text string) {
	line := fmt.Sprintf("%5.1f s  %s", at.Seconds(), text)
	if s.redraw {
		s.events = append(s.events, line)
		s.drawn = -time.Hour
	} else {
		s.say("%s", line)
	}
}

// draw shows the rows, unless the last drawing is too recent.
func (s *screen) draw(at time.Duration, limit policy.Rate, rows []row) {
	every := time.Second
	if s.redraw {
		every = 200 * time.Millisecond
	}
	if at-s.drawn < every {
		return
	}
	s.drawn = at
	if !s.redraw {
		s.say("%s", plainLine(at, limit, rows))
		return
	}
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	lines := append(table(at, limit, rows), s.events...)
	for _, line := range lines {
		b.WriteString(line + clearLine + "\n")
	}
	s.lines = len(lines)
	s.print(b.String())
}

// end keeps the table on the screen.
func (s *screen) end() { s.lines = 0 }

const barWidth = 16

// table returns the lines of the live table, which have at most 100 columns.
func table(at time.Duration, limit policy.Rate, rows []row) []string {
	lines := []string{"",
		fmt.Sprintf("  %slimit %s%s, shared by %d consumer groups of %d consumers in %d replicas"+
			"   %s%.1f s%s", bold, limit, plainText, len(rows), replicas*consumersEach, replicas,
			dim, at.Seconds(), plainText),
		"",
		fmt.Sprintf("  %s%-8s %8s  %-*s %5s %8s  %-13s  %s%s", dim, "GROUP", "RATE",
			barWidth, "OF THE LIMIT", "SHARE", "BACKLOG", "STATE", "WHY", plainText),
	}
	total, charged := 0.0, 0.0
	for _, r := range rows {
		color := yellow
		if r.caughtUp > 0 {
			color = green
		}
		total += r.rate
		if r.caughtUp < r.replicas {
			charged += r.rate
		}
		lines = append(lines, fmt.Sprintf("  %-8s %6.0f/s  %s%s%s %3.0f %% %8d  %s%-13s%s  %s",
			r.group.name, r.rate, color, bar(r.rate/limit.PerSec()), plainText, 100*r.share,
			r.backlog, color, r.state(), plainText, r.why(limit)))
	}
	part := charged / limit.PerSec()
	all := fmt.Sprintf("  %-8s %6.0f/s  %s %17s%.0f/s throttled = %.0f %% of the limit",
		"all", total, bar(part), "", charged, 100*part)
	return append(lines, all, "")
}

// bar draws a part, 0..1.
func bar(part float64) string {
	full := min(barWidth, max(0, int(part*barWidth+0.5)))
	return strings.Repeat("█", full) + strings.Repeat("·", barWidth-full)
}

// plainLine returns the table as one line.
func plainLine(at time.Duration, limit policy.Rate, rows []row) string {
	var line strings.Builder
	fmt.Fprintf(&line, "%5.1f s  limit %s", at.Seconds(), limit)
	for _, r := range rows {
		fmt.Fprintf(&line, " | %s %.0f/s %.0f %% backlog %d %s",
			r.group.name, r.rate, 100*r.share, r.backlog, r.state())
	}
	return line.String()
}
