package cluster

import (
	"math"
	"slices"
	"strings"
)

// Lines are values at the same times, by name.
type Lines map[string]Numbers

// Put appends a value to a line that has n others, or is new: those before are unknown then.
func (l Lines) Put(name string, x float32, n int) {
	if l[name] == nil {
		l[name] = slices.Repeat(Numbers{float32(math.NaN())}, n)
	}
	l[name] = append(l[name], x)
}

// Drop forgets the first n values of all lines, and lines of which no other is known.
func (l Lines) Drop(n int) {
	for name, values := range l {
		l[name] = slices.Clone(values[n:]) // frees what was dropped
		if !slices.ContainsFunc(l[name], func(x float32) bool { return x == x }) {
			delete(l, name)
		}
	}
}

// From returns the values from the n-th on, by name.
func (l Lines) From(n int) []Rates {
	all := []Rates{}
	for name, values := range l {
		all = append(all, Rates{Name: name, Values: slices.Clone(values[n:])})
	}
	slices.SortFunc(all, func(a, b Rates) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Bytes is about how much memory the lines take.
func (l Lines) Bytes() (n int) {
	const ofLine = 200
	for name, values := range l {
		n += ofLine + len(name) + 4*cap(values)
	}
	return n
}
