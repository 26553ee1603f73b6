package simulate

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
)

// A panel is one of several charts side by side.
type panel struct {
	title string
	lines []line
}

type line struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

// add appends a point at a second.
func (l *line) add(second int, y float64) {
	l.points = append(l.points, point{float64(second), y})
}

// Sizes, in pixels.
const (
	panelWidth, panelHeight  = 480, 300
	chartLeft, chartTop      = 60, 64
	chartBottom, panelSpace  = 70, 30
	ticks                    = 5
	chartFont, chartFontSize = "sans-serif", 12
)

// colours of the lines; colour-blind people can tell them apart.
var colours = []string{"#999999", "#0072b2", "#d55e00", "#009e73"}

// drawChart returns an SVG picture of panels side by side, with the same axes.
func drawChart(title, xName, yName string, panels ...panel) []byte {
	var xMax, yMax float64
	for _, p := range panels {
		for _, l := range p.lines {
			for _, at := range l.points {
				xMax, yMax = max(xMax, at.x), max(yMax, at.y)
			}
		}
	}
	xMax, yMax = roundUp(max(xMax, 1)), roundUp(max(yMax, 1))
	width := chartLeft + len(panels)*(panelWidth+panelSpace)
	height := chartTop + panelHeight + chartBottom
	var w bytes.Buffer
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `, width, height)
	fmt.Fprintf(&w, `font-family="%s" font-size="%d">`+"\n", chartFont, chartFontSize)
	fmt.Fprintf(&w, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	text(&w, chartLeft, 22, "start", 16, title)
	for i, p := range panels {
		left := chartLeft + i*(panelWidth+panelSpace)
		x := func(v float64) float64 { return float64(left) + v/xMax*panelWidth }
		y := func(v float64) float64 { return chartTop + (1-v/yMax)*panelHeight }
		text(&w, float64(left), chartTop-10, "start", 14, p.title)
		for t := range ticks + 1 {
			xv, yv := xMax*float64(t)/ticks, yMax*float64(t)/ticks
			fmt.Fprintf(&w, `<path d="M%d %.1fh%d" stroke="#dddddd"/>`+"\n",
				left, y(yv), panelWidth)
			text(&w, x(xv), chartTop+panelHeight+18, "middle", chartFontSize, fmt.Sprintf("%g", xv))
			if i == 0 {
				text(&w, float64(left)-6, y(yv)+4, "end", chartFontSize, fmt.Sprintf("%g", yv))
			}
		}
		for n, l := range p.lines {
			colour := colours[n%len(colours)]
			fmt.Fprintf(&w, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, colour)
			for _, at := range l.points {
				fmt.Fprintf(&w, "%.1f,%.1f ", x(at.x), y(at.y))
			}
			fmt.Fprintln(&w, `"/>`)
			key := float64(left + n*panelWidth/len(p.lines))
			fmt.Fprintf(&w, `<path d="M%.0f %dh20" stroke="%s" stroke-width="2"/>`+"\n",
				key, height-16, colour)
			text(&w, key+26, float64(height)-12, "start", chartFontSize, l.name)
		}
		middle := float64(left + panelWidth/2)
		text(&w, middle, chartTop+panelHeight+36, "middle", chartFontSize, xName)
	}
	text(&w, chartLeft, chartTop-28, "start", chartFontSize, yName)
	fmt.Fprintln(&w, `</svg>`)
	return w.Bytes()
}

func text(w *bytes.Buffer, x, y float64, anchor string, size int, s string) {
	fmt.Fprintf(w, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d">`, x, y, anchor, size)
	_ = xml.EscapeText(w, []byte(s)) // a Buffer returns no error
	fmt.Fprintln(w, `</text>`)
}

// roundUp returns the smallest number from v on of which a fifth is a round number.
func roundUp(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10} {
		if v <= f*unit {
			return f * unit
		}
	}
	return v
}
