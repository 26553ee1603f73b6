package engine

import "log/slog"

// A journal keeps lines of the log until Engine.mu is free: the handler of a log may be slow, or
// call the Limiter. The loop writes them after each step.
type journal struct {
	log   *slog.Logger
	lines []line // guarded by Engine.mu
}

// A line is one of level WARN.
type line struct {
	text string
	args []any
}

// warn adds a line.
func (j *journal) warn(text string, args ...any) { j.lines = append(j.lines, line{text, args}) }

// take returns the lines to write, and forgets them.
func (j *journal) take() (lines []line) {
	lines, j.lines = j.lines, nil
	return lines
}

// write writes lines that were taken. Engine.mu is not held.
func (j *journal) write(lines []line) {
	for _, l := range lines {
		j.log.Warn(l.text, l.args...)
	}
}
