package policy

import (
	"cmp"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The syntax of topics' URLs, without the bounds on lengths. It comes in two parts, so that the
// example of a topic that two patterns match has a known scheme if there is such a topic.
var (
	knownURLs = compile(`^(?:(?:non-)?persistent://` + path +
		`|kafka://[-=:.\w]+/[-=:.\w]+/[-.\w]+` +
		`|numaflow://` + dns + `/` + dns + `/` + dns + `)$`)
	allURLs = compile(`^` + schemeSyntax + `://` + path + `$`) // with names that Kafka refuses
)

const (
	path = `[-=:.\w]+/[-=:.\w]+/[^/\x00-\x1f\x7f\x{FFFD}]+`
	dns  = `[a-z0-9](?:[-a-z0-9]*[a-z0-9])?`
)

// The most steps that it may take to decide whether a pair of patterns overlaps, and all pairs of
// one check. Most pairs take 30,000 steps, which is about a millisecond.
const (
	maxOverlapSteps = 2_000_000
	maxTieSteps     = 50_000_000
)

// An automaton is a compiled pattern, which may match anywhere in a text.
type automaton struct {
	prog   *syntax.Prog
	prefix string // with which each text that matches begins; "" = unknown
}

// The states of an automaton are the instructions of its program, before empty-width assertions
// are looked at, and these two.
const (
	waiting = -1 - iota // no match has started
	matched             // a match has ended
)

// compile returns the automaton of a pattern that is a valid regular expression.
func compile(pattern string) *automaton {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		panic(err) // the caller has compiled it before
	}
	a := &automaton{}
	if re = re.Simplify(); re.Op == syntax.OpConcat && re.Sub[0].Op == syntax.OpBeginText &&
		re.Sub[1].Op == syntax.OpLiteral && re.Sub[1].Flags&syntax.FoldCase == 0 {
		a.prefix = string(re.Sub[1].Rune)
	}
	if a.prog, err = syntax.Compile(re); err != nil {
		panic(err)
	}
	return a
}

// knowsScheme reports whether all texts that match have a scheme whose names follow rules.
func (a *automaton) knowsScheme() bool {
	scheme, _, ok := strings.Cut(a.prefix, "://")
	return ok && (isPulsar(scheme) || scheme == Kafka || scheme == Numaflow)
}

// A search goes breadth first through the product of three automata. That product is small where
// the automata are, unlike the product of deterministic automata.
type search struct {
	all    [3]*automaton
	runes  []rune // one of each class of runes that no automaton tells apart
	seen   map[product]bool
	nodes  []node
	opened map[opening]opened
	steps  *int // left
}

// A product is one state of each automaton, and the rune before as far as assertions depend on it.
type product struct {
	states [3]int32
	before rune
}

// A node is a product, and how it was reached.
type node struct {
	product
	parent int
	r      rune
}

// An opening is an automaton in a state, with the assertions that hold there.
type opening struct {
	automaton int
	state     int32
	flags     syntax.EmptyOp
}

// opened is where an opening leads before the next rune: to instructions that consume one, or to a
// match.
type opened struct {
	runes []*syntax.Inst
	match bool
}

// overlap returns the URL of a topic that both patterns match, one of the shortest; "" if there is
// none. It is undecided if that takes more than the steps that are left.
func overlap(a, b *automaton, steps *int) (topic string, decided bool) {
	if !strings.HasPrefix(a.prefix, b.prefix) && !strings.HasPrefix(b.prefix, a.prefix) {
		return "", true // no text begins with both
	}
	topic, decided = firstMatch(knownURLs, a, b, steps)
	if topic != "" || !decided || a.knowsScheme() || b.knowsScheme() {
		return topic, decided
	}
	topic, decided = firstMatch(allURLs, a, b, steps)
	if strings.HasPrefix(topic, Kafka+"://") || strings.HasPrefix(topic, Numaflow+"://") {
		return "", false // a name that they refuse; it may hide one of another scheme
	}
	return topic, decided
}

// firstMatch returns one of the shortest texts that all three match.
func firstMatch(urls, a, b *automaton, steps *int) (text string, decided bool) {
	s := search{
		all: [3]*automaton{urls, a, b}, steps: steps,
		seen: map[product]bool{}, opened: map[opening]opened{},
	}
	s.classify()
	s.visit(product{[3]int32{waiting, waiting, waiting}, -1}, 0, 0)
	for at := 0; ; at++ {
		switch {
		case *s.steps <= 0:
			return "", false
		case at == len(s.nodes):
			return "", true
		case s.accepts(s.nodes[at].product):
			return s.text(at), true
		}
		for _, r := range s.runes {
			s.follow(at, r)
		}
	}
}

// classify finds the classes of runes, and the simplest rune of each.
func (s *search) classify() {
	cuts := map[rune]bool{}
	cut := func(lo, hi rune) { cuts[lo], cuts[hi+1] = true, true }
	for _, r := range []rune{'\n', '_'} {
		cut(r, r)
	}
	cut('a', 'a')
	cut('b', 'z')
	cut('A', 'Z')
	cut('0', '9')
	var insts []*syntax.Inst
	for _, a := range s.all {
		for i := range a.prog.Inst {
			inst := &a.prog.Inst[i]
			if len(inst.Rune) == 0 {
				continue
			}
			insts = append(insts, inst)
			for j := 0; j+1 < len(inst.Rune); j += 2 {
				cut(inst.Rune[j], inst.Rune[j+1])
			}
			if len(inst.Rune) == 1 {
				first := inst.Rune[0]
				cut(first, first)
				for r := unicode.SimpleFold(first); r != first; r = unicode.SimpleFold(r) {
					cut(r, r)
				}
			}
		}
	}
	known := map[string]bool{}
	for _, r := range slices.SortedFunc(maps.Keys(cuts), simpler) {
		if !utf8.ValidRune(r) {
			continue
		}
		*s.steps -= len(insts)
		class := []byte{byte(1 + runeClass(r))}
		for _, i := range insts {
			class = append(class, 0)
			if i.MatchRune(r) {
				class[len(class)-1] = 1
			}
		}
		if !known[string(class)] {
			known[string(class)] = true
			s.runes = append(s.runes, r)
		}
	}
}

// simpler orders runes: letters and digits of ASCII first.
func simpler(a, b rune) int {
	other := func(r rune) int {
		switch {
		case 'a' <= r && r <= 'z':
			return 0
		case '0' <= r && r <= '9':
			return 1
		case r < utf8.RuneSelf:
			return 2
		}
		return 3
	}
	return cmp.Or(cmp.Compare(other(a), other(b)), cmp.Compare(a, b))
}

// runeClass returns a rune that assertions cannot tell from r; -1 stays the beginning of the text.
func runeClass(r rune) rune {
	switch {
	case r < 0 || r == '\n':
		return r
	case syntax.IsWordChar(r):
		return 'a'
	}
	return '-'
}

// visit adds a product unless it was visited before.
func (s *search) visit(p product, parent int, r rune) {
	*s.steps--
	if !s.seen[p] {
		s.seen[p] = true
		s.nodes = append(s.nodes, node{p, parent, r})
	}
}

// accepts reports whether all automata match a text that ends here.
func (s *search) accepts(p product) bool {
	flags := syntax.EmptyOpContext(p.before, -1)
	for i, state := range p.states {
		if !s.open(i, state, flags).match {
			return false
		}
	}
	return true
}

// follow visits the products that follow a node after a rune.
func (s *search) follow(at int, r rune) {
	p := s.nodes[at].product
	flags := syntax.EmptyOpContext(p.before, r)
	var next [3][]int32
	for i, state := range p.states {
		switch o := s.open(i, state, flags); {
		case o.match:
			next[i] = []int32{matched} // whatever follows
		case state == waiting:
			next[i] = []int32{waiting}
			fallthrough
		default:
			for _, inst := range o.runes {
				if inst.MatchRune(r) {
					next[i] = append(next[i], int32(inst.Out))
				}
			}
		}
		*s.steps--
		if len(next[i]) == 0 {
			return
		}
	}
	for _, a := range next[0] {
		for _, b := range next[1] {
			for _, c := range next[2] {
				s.visit(product{[3]int32{a, b, c}, runeClass(r)}, at, r)
			}
		}
	}
}

// open follows the instructions that consume no rune.
func (s *search) open(automaton int, state int32, flags syntax.EmptyOp) opened {
	key := opening{automaton, state, flags}
	o, ok := s.opened[key]
	if ok {
		return o
	}
	prog := s.all[automaton].prog
	seen := map[uint32]bool{}
	var follow func(pc uint32)
	follow = func(pc uint32) {
		if seen[pc] {
			return
		}
		seen[pc] = true
		*s.steps--
		switch i := &prog.Inst[pc]; i.Op {
		case syntax.InstMatch:
			o.match = true
		case syntax.InstAlt, syntax.InstAltMatch:
			follow(i.Out)
			follow(i.Arg)
		case syntax.InstCapture, syntax.InstNop:
			follow(i.Out)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(i.Arg)&^flags == 0 {
				follow(i.Out)
			}
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			o.runes = append(o.runes, i)
		}
	}
	switch state {
	case matched:
		o.match = true
	case waiting:
		follow(uint32(prog.Start))
	default:
		follow(uint32(state))
	}
	s.opened[key] = o
	return o
}

// text returns the runes that lead to a node.
func (s *search) text(at int) string {
	var runes []rune
	for ; at > 0; at = s.nodes[at].parent {
		runes = append(runes, s.nodes[at].r)
	}
	slices.Reverse(runes)
	return string(runes)
}
