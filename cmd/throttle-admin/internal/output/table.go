package output

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/dispatchthrottle/throttle/internal/printable"
)

// MaxWidth is the most columns of a terminal that a line of a table or of a text takes.
const MaxWidth = 100

// gap is the space between two columns of a table.
const gap = 2

// style has neither borders nor colours.
var style = table.Style{
	Box:     table.BoxStyle{PaddingRight: strings.Repeat(" ", gap)},
	Options: table.OptionsNoBordersAndSeparators,
}

// Table writes rows below a header. Text that is wider than its column continues on the next line.
// A line break within a cell is escaped, as is all that is not printable.
func Table(w *strings.Builder, header []string, rows [][]string) {
	rows = printableCells(rows)
	t := table.NewWriter()
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(rowOf(header))
	for _, row := range rows {
		t.AppendRow(rowOf(row))
	}
	var columns []table.ColumnConfig
	for i, width := range widths(slices.Insert(slices.Clone(rows), 0, header)) {
		columns = append(columns, table.ColumnConfig{
			Number: i + 1, WidthMax: width, WidthMaxEnforcer: text.WrapSoft,
		})
	}
	t.SetColumnConfigs(columns)
	fmt.Fprintln(w, t.Render())
}

func printableCells(rows [][]string) (all [][]string) {
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable.Line(cell)
		}
		all = append(all, cells)
	}
	return all
}

func rowOf(cells []string) (row table.Row) {
	for _, cell := range cells {
		row = append(row, cell)
	}
	return row
}

// widths returns the width of each column. Where the rows are wider than MaxWidth, the widest
// column becomes narrower first: no narrower than its longest word, as long as that is enough.
func widths(rows [][]string) []int {
	widths, words := make([]int, len(rows[0])), make([]int, len(rows[0]))
	excess := -gap - MaxWidth
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], text.LongestLineLen(row[i]))
			for word := range strings.FieldsSeq(row[i]) {
				words[i] = max(words[i], text.StringWidthWithoutEscSequences(word))
			}
		}
		excess += widths[i] + gap
	}
	for _, narrowest := range [][]int{words, make([]int, len(widths))} {
		for ; excess > 0; excess-- {
			widest := -1
			for i := range widths {
				if widths[i] > narrowest[i] && (widest < 0 || widths[i] > widths[widest]) {
					widest = i
				}
			}
			if widest < 0 {
				break
			}
			widths[widest]--
		}
	}
	return widths
}

// Text writes a text in lines of at most MaxWidth.
func Text(w *strings.Builder, format string, args ...any) {
	writeLines(w, "", fmt.Sprintf(format, args...))
}

// Item writes a text as an item of a list.
func Item(w *strings.Builder, s string) { writeLines(w, "- ", s) }

// Labelled writes a text after a label; further lines begin below the first one.
func Labelled(w *strings.Builder, label, s string) { writeLines(w, label, s) }

// writeLines writes a text with mark before its first line, and as many spaces before the others.
func writeLines(w *strings.Builder, mark, s string) {
	for line := range strings.Lines(text.WrapSoft(printable.Line(s), MaxWidth-len(mark))) {
		fmt.Fprintln(w, mark+strings.TrimRight(line, " \n"))
		mark = strings.Repeat(" ", len(mark))
	}
}
