// Package output writes results: tables for people, JSON and YAML for programs.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"

	"github.com/dispatchthrottle/throttle/policy"
)

// Print writes v as JSON or YAML, or has table write it for people.
func Print(w io.Writer, format string, v any, table func(*strings.Builder)) error {
	if format == "table" {
		var text strings.Builder
		table(&text)
		_, err := io.WriteString(w, text.String())
		return err
	}
	data, err := json.MarshalIndent(v, "", "  ")
	if err == nil && format == "yaml" {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	_, err = fmt.Fprintln(w, strings.TrimSuffix(string(data), "\n"))
	return err
}

// MaxWidth is that of a table, in characters; longer cells go on in the next line.
const MaxWidth = 100

// Table writes rows below a header, each column as wide as it needs to be.
func Table(w *strings.Builder, header []string, rows [][]string) {
	rows = slices.Insert(slices.Clone(rows), 0, header)
	const gap = 2
	widths, words := make([]int, len(header)), make([]int, len(header)) // of the longest cell; of its longest word
	total := -gap
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
			for word := range strings.FieldsSeq(row[i]) {
				words[i] = max(words[i], utf8.RuneCountInString(word))
			}
		}
		total += widths[i] + gap
	}
	for ; total > MaxWidth; total-- { // the widest gives, words rather than names
		widest := -1
		for _, least := range [][]int{words, make([]int, len(widths))} {
			for i := range widths {
				if widths[i] > least[i] && (widest < 0 || widths[i] > widths[widest]) {
					widest = i
				}
			}
			if widest >= 0 {
				break
			}
		}
		widths[widest]--
	}
	for _, row := range rows {
		cells := make([][]string, len(row))
		height := 0
		for i, text := range row {
			cells[i] = Fold(text, widths[i])
			height = max(height, len(cells[i]))
		}
		for y := range height {
			var line strings.Builder
			for i := range row {
				text := ""
				if y < len(cells[i]) {
					text = cells[i][y]
				}
				fmt.Fprintf(&line, "%-*s", widths[i]+gap, text)
			}
			fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
		}
	}
}

// Fold breaks a text into lines, at spaces where it can.
func Fold(text string, width int) (lines []string) {
	rest := []rune(text)
	for len(rest) > width {
		cut := width
		for i := width; i > width/2; i-- {
			if rest[i] == ' ' {
				cut = i
				break
			}
		}
		lines = append(lines, string(rest[:cut]))
		rest = []rune(strings.TrimPrefix(string(rest[cut:]), " "))
	}
	return append(lines, string(rest))
}

// Field returns the value of a field as people write it, "" if it is not set.
func Field(p policy.Policy, field string) string {
	data, err := json.Marshal(p.Only(field))
	var values map[string]json.RawMessage
	if err != nil || json.Unmarshal(data, &values) != nil {
		return ""
	}
	return strings.Trim(string(values[field]), `"`)
}

// Fields returns what a policy sets: "messageRate=500/s burst=100".
func Fields(p policy.Policy) string {
	var texts []string
	for field := range policy.Fields() {
		if p.Has(field) {
			texts = append(texts, field+"="+Field(p, field))
		}
	}
	return strings.Join(texts, " ")
}

// Left says how long it is until t: no finer than people care for.
func Left(t, now time.Time) string {
	d := t.Sub(now)
	unit := time.Second
	if d > time.Hour {
		unit = time.Minute
	}
	return policy.Duration(max(d.Round(unit), 0)).String()
}

// Seconds says a short time in a unit that fits.
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// Number writes a figure with three digits at least, and no more behind the point than it needs.
func Number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

// Text writes what goes on in the next line where it is too long for one.
func Text(w *strings.Builder, format string, args ...any) {
	for _, line := range Fold(fmt.Sprintf(format, args...), MaxWidth) {
		fmt.Fprintln(w, line)
	}
}

// OrNone writes a figure that may not be known.
func OrNone(rate float64) string {
	if math.IsNaN(rate) {
		return "-"
	}
	return Number(rate)
}

// Dash writes a text that may be empty.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
