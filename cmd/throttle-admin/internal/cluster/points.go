package cluster

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// Points are the figures of a topic in the last hour. Old ones are further apart.
type Points struct {
	Times    []int64 `json:"times"`    // Unix seconds
	Limit    Numbers `json:"limit"`    // permits a second, as are rates
	Backlog  Numbers `json:"backlog"`  // messages
	WaitP99  Numbers `json:"waitP99"`  // seconds
	Requests Numbers `json:"requests"` // to the permit store, a second
	Rates    []Rates `json:"rates"`    // by subscription and owner
}

// Rates are those of one subscription's messages with one owner.
type Rates struct {
	Name   string  `json:"name"`
	Values Numbers `json:"values"`
}

// Numbers are values of which some may be unknown: null in JSON.
type Numbers []float32

// MarshalJSON implements json.Marshaler.
func (n Numbers) MarshalJSON() ([]byte, error) {
	text := append(make([]byte, 0, 8*len(n)+2), '[')
	for i, x := range n {
		if i > 0 {
			text = append(text, ',')
		}
		if x != x || math.IsInf(float64(x), 0) {
			text = append(text, "null"...)
		} else {
			text = strconv.AppendFloat(text, float64(x), 'g', 6, 32)
		}
	}
	return append(text, ']'), nil
}

// tracks are those of a topic, the finest last; nil ones are not kept.
type tracks [3]*track

// How far apart the points of tracks are, in seconds: of all topics, of the busiest, and of those
// whose plots are on view.
var steps = [len(tracks{})]int64{60, 10, 1}

const (
	coarse = iota
	middle
	fine
)

// add adds a row to all tracks.
func (ts *tracks) add(r *Row, now time.Time, gap int64) {
	for _, t := range ts {
		if t != nil {
			t.add(r, now, gap)
		}
	}
}

// keep begins or drops a track.
func (ts *tracks) keep(i int, kept bool, now time.Time) {
	switch {
	case !kept:
		ts[i] = nil
	case ts[i] == nil:
		ts[i] = newTrack(steps[i], now)
	}
}

func (ts *tracks) bytes() (n int) {
	for _, t := range ts {
		if t != nil {
			n += t.bytes()
		}
	}
	return n
}

// since returns the points of the hour before now that are after a time: of each time, those of the
// finest track.
func (ts *tracks) since(after int64, now time.Time) Points {
	after = max(after, now.Unix()-hour)
	var p Points
	names := map[string]bool{}
	for _, t := range ts {
		if t != nil {
			for name := range t.rates {
				names[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		p.Rates = append(p.Rates, Rates{Name: name})
	}
	for i, t := range ts {
		if t == nil {
			continue
		}
		until := int64(math.MaxInt64)
		for _, finer := range ts[i+1:] {
			if finer != nil && len(finer.times) > 0 {
				until = min(until, finer.times[0])
			}
		}
		for j, at := range t.times {
			if at <= after || at >= until {
				continue
			}
			p.Times = append(p.Times, at)
			p.Limit, p.Backlog = append(p.Limit, t.figures[limitFigure][j]), append(p.Backlog, t.figures[backlogFigure][j])
			p.WaitP99, p.Requests = append(p.WaitP99, t.figures[waitFigure][j]), append(p.Requests, t.figures[requestsFigure][j])
			for k := range p.Rates {
				x := float32(math.NaN())
				if values := t.rates[p.Rates[k].Name]; j < len(values) {
					x = values[j]
				}
				p.Rates[k].Values = append(p.Rates[k].Values, x)
			}
		}
	}
	return p
}
