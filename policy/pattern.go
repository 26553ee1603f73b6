package policy

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"runtime"
	"sync"
	"weak"
)

// Bounds of patterns. The cost of a pattern is the number of instructions of its program, beyond
// those of the text with which a pattern like ^kafka://public/default/ begins: the time that a
// topic's URL takes is at most proportional to its length and to the cost.
const (
	maxPatternCost  = 500    // of one pattern that is set
	maxPatternsCost = 10_000 // of all patterns, and of one that is read
	maxPatterns     = 1000
)

// A pattern is a compiled pattern.
type pattern struct {
	regex *regexp.Regexp
	cost  int
}

// compiled has the patterns that sets use, by text, so that a change of the policies compiles only
// the patterns that are new: weak.Pointer[pattern] by string.
var compiled sync.Map

// compilePattern compiles a pattern unless a set has it already. It returns a *[FieldError] if the
// pattern is invalid or costs too much to be matched at all.
func compilePattern(s string) (*pattern, error) {
	if known, ok := compiled.Load(s); ok {
		if p := known.(weak.Pointer[pattern]).Value(); p != nil {
			return p, nil
		}
	}
	fault := func(err error) error {
		return &FieldError{"scope.pattern", s, fmt.Sprintf("invalid regular expression: want RE2's syntax: %v", err)}
	}
	if _, err := syntax.Parse(s, syntax.Perl); err != nil {
		return nil, fault(err)
	}
	cost := compile(s).cost()
	if cost > maxPatternsCost {
		return nil, tooCostly(s, cost)
	}
	regex, err := regexp.Compile(s)
	if err != nil {
		return nil, fault(err)
	}
	p := &pattern{regex, cost}
	here := weak.Make(p)
	compiled.Store(s, here)
	runtime.AddCleanup(p, func(s string) { compiled.CompareAndDelete(s, here) }, s)
	return p, nil
}

func tooCostly(s string, cost int) error {
	return &FieldError{"scope.pattern", s, fmt.Sprintf("costs %d steps for each character of a topic: want "+
		"at most %d: use smaller repetitions, or fewer alternatives", cost, maxPatternCost)}
}

// cost is the number of instructions beyond those of the prefix.
func (a *automaton) cost() int { return len(a.prog.Inst) - len([]rune(a.prefix)) }

// CheckPatterns returns what is wrong with the patterns of the set: one of them, or all together,
// cost too much, or there are too many. A set that is no worse than before in this respect has no
// such fault. A policy that has been stored stays in force, whatever its pattern costs.
func (s *Set) CheckPatterns(before *Set) error {
	stored := map[string]bool{}
	for _, l := range before.patterns {
		stored[l.scope.Pattern] = true
	}
	for _, l := range s.patterns {
		if l.pattern.cost > maxPatternCost && !stored[l.scope.Pattern] {
			return tooCostly(l.scope.Pattern, l.pattern.cost)
		}
	}
	n, cost := len(s.patterns), s.patternsCost()
	switch {
	case n > maxPatterns && n > len(before.patterns):
		return &FieldError{"scope.pattern", "", fmt.Sprintf(
			"%d patterns: want at most %d: use namespaces, or patterns that match more", n, maxPatterns)}
	case cost > maxPatternsCost && cost > before.patternsCost():
		return &FieldError{"scope.pattern", "", fmt.Sprintf(
			"all patterns together cost %d steps for each character of a topic: want at most %d: "+
				"begin them with ^ and a text such as kafka://public/, or use fewer",
			cost, maxPatternsCost)}
	}
	return nil
}

func (s *Set) patternsCost() (cost int) {
	for _, l := range s.patterns {
		cost += l.pattern.cost
	}
	return cost
}
