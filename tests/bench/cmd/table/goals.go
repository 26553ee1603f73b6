package main

import "fmt"

// goals are what our own rows must reach.
var goals = goalList{
	{"tests/bench", "Off", "ns/op", atMost, 4},
	{"tests/bench", "Off", "allocs/permit", atMost, 0},
	{"tests/bench", "Admit", "ns/op", atMost, 12},
	{"tests/bench", "Admit", "allocs/permit", atMost, 0},
	{"tests/bench", "Admit64", "ns/op", atMost, 20},
	{"tests/bench", "Admit64", "allocs/permit", atMost, 0},
	{"tests/bench", "Batch64", "ns/permit", atMost, 0.5},
	{"tests/bench", "Deny", "ns/op", atMost, 5},
	{"tests/bench", "Return", "ns/op", atMost, 40},
}

type goalList []struct {
	pkg, work, unit string
	bound           bound
	value           float64
}

type bound string

const (
	atMost  bound = "≤"
	atLeast bound = "≥"
)

// judge returns the goals of a row, and which of them a figure misses.
func (l goalList) judge(k row, v float64) (text string) {
	for _, g := range l {
		if g.pkg != k.pkg || g.work != k.work || g.unit != k.unit {
			continue
		}
		text += fmt.Sprintf("%s %s ", g.bound, figure(g.value))
		if g.bound == atMost && v > g.value || g.bound == atLeast && v < g.value {
			text += "**missed** "
		}
	}
	return text
}
