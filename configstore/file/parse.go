package file

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// MaxSize is the most bytes that a file may have.
const MaxSize = 1 << 20

// A LineError is one fault of a file.
type LineError struct {
	Name string // of the file
	Line int    // from 1; 0 = the file as a whole
	Err  error  // often a *policy.FieldError
}

func (e *LineError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.Name, e.Line, e.Err)
}

func (e *LineError) Unwrap() error { return e.Err }

// Parse reads a file of policies and quotas, YAML or JSON. name is for its errors, which join a
// *[LineError] for each fault:
//
//	schema: 2
//	policies:
//	  - scope: kafka://public/default/orders
//	    subscription: billing         # optional
//	    messageRate: 1000/s           # and any other field, groups as mappings
//	    ramp: {from: 100/s, over: 1m}
//	    expires: 2026-01-02T15:04:05Z # optional: temporary until then
//	quotas:
//	  - scope: tag:reports
//	    total: 1MiB
//	quotaSettings:                    # one mapping, or a list with temporary ones
//	  zones: [a, b]
//	historySettings:                  # likewise
//	  reasonRequired: true
//
// A temporary entry comes back as one entry for each of its fields. One that has expired, or would
// live longer than [configstore.MaxTTL], is refused. A file that sets nothing has to have
// policies: [], so that one that was cut off lifts no limits.
func Parse(name string, data []byte) ([]policy.Entry, error) {
	return parseAt(name, data, time.Now())
}

// parseAt is Parse at now. If now is zero, entries may expire at any time: a file that is a store
// keeps those that have expired.
func parseAt(name string, data []byte, now time.Time) ([]policy.Entry, error) {
	p := &fileParser{
		name: name, now: now, seen: make(map[configstore.Key]int),
		lines: make(map[policy.Scope]int),
	}
	if len(data) > MaxSize {
		p.fault(nil, fmt.Errorf("%d bytes: want at most %d", len(data), MaxSize))
		return nil, errors.Join(p.errs...)
	}
	tokens := lexer.Tokenize(strings.TrimPrefix(string(data), byteOrderMark))
	if at := tooDeep(tokens); at > 0 {
		err := fmt.Errorf("nested more than %d deep: want at most 3 levels", maxDepth)
		return nil, &LineError{name, at, err}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		p.fault(nil, err)
		if syntax, ok := errors.AsType[yaml.Error](err); ok {
			p.errs[0] = &LineError{
				name, syntax.GetToken().Position.Line, errors.New(syntax.GetMessage()),
			}
		}
		return nil, errors.Join(p.errs...)
	}
	for i, doc := range file.Docs {
		if i > 0 && doc.Body != nil {
			p.fault(doc.Body, errors.New("second document: want all policies in one"))
			break
		}
		p.root(doc.Body)
	}
	if err := errors.Join(p.errs...); err != nil {
		return nil, err
	}
	slices.SortFunc(p.entries, policy.Entry.Compare)
	set, err := policy.NewSet(p.entries)
	for err := range flatten(err) {
		p.errs = append(p.errs, &LineError{name, 0, err})
	}
	if err := set.CheckPatterns(policy.Single(policy.Policy{})); err != nil {
		return nil, errors.Join(append(p.errs, &LineError{name, 0, err})...)
	}
	for _, tie := range set.Ties(func(policy.Scope) bool { return true }) {
		if tie.Topic != "" {
			p.errs = append(p.errs, &LineError{name, max(p.lines[tie.A], p.lines[tie.B]), tie})
		}
	}
	if err := errors.Join(p.errs...); err != nil {
		return nil, err
	}
	return p.entries, nil
}

// byteOrderMark is what some editors put first.
const byteOrderMark = "\uFEFF"

// maxDepth is how deep brackets and lists may nest; the parser's time grows with the square of it.
const maxDepth = 50

// tooDeep returns the line in which more than maxDepth brackets are open, or as many list items and
// keys follow each other; 0 if there is none.
func tooDeep(tokens token.Tokens) int {
	depth, items, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, items = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth = max(0, depth-1)
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType:
			items++
		case token.CollectEntryType: // a comma: the next item is not nested in the last one
			items = 0
		}
		if depth > maxDepth || items > maxDepth {
			return line
		}
	}
	return 0
}

type fileParser struct {
	name    string
	now     time.Time
	entries []policy.Entry
	empty   bool                    // it has policies: []
	seen    map[configstore.Key]int // line
	lines   map[policy.Scope]int
	errs    []error
}

func (p *fileParser) fault(at ast.Node, err error) {
	p.errs = append(p.errs, &LineError{p.name, line(at), err})
}

// fieldFault reports a fault of one field.
func (p *fileParser) fieldFault(at ast.Node, field, value, reason string) {
	p.fault(at, &policy.FieldError{Field: field, Value: value, Reason: reason})
}

func line(n ast.Node) int {
	if n == nil || n.GetToken() == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

// mapping returns the pairs of a mapping; the parser has refused duplicate keys.
func (p *fileParser) mapping(n ast.Node, what string) []*ast.MappingValueNode {
	pairs, ok := pairsOf(n)
	if !ok {
		p.fault(n, fmt.Errorf("%s: want a mapping of names to values", what))
	}
	return pairs
}

func pairsOf(n ast.Node) (pairs []*ast.MappingValueNode, ok bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

func keyOf(pair *ast.MappingValueNode) string { return pair.Key.GetToken().Value }

func (p *fileParser) root(body ast.Node) {
	if body == nil {
		p.fault(nil, fmt.Errorf("empty: want schema: %d and policies: []", policy.Schema))
		return
	}
	schema := false
	for _, pair := range p.mapping(body, "the file") {
		key := keyOf(pair)
		section, ok := policy.ParseSection(key)
		switch {
		case key == "schema":
			schema = true
			p.schema(pair.Value)
		case key == "marker": // of earlier versions
		case ok:
			p.section(section, pair.Value)
		default:
			p.fieldFault(pair.Key, key, "",
				"unknown field: want schema, policies, quotas, quotaSettings or historySettings")
		}
	}
	if !schema {
		p.fieldFault(body, "schema", "", fmt.Sprintf("missing: want schema: %d", policy.Schema))
	}
	sets := func(e policy.Entry) bool { return !policy.IsZero(e.Settings) }
	if len(p.errs) == 0 && !p.empty && !slices.ContainsFunc(p.entries, sets) {
		p.nothingSet(body)
	}
}

// nothingSet reports what a file that was cut off may look like.
func (p *fileParser) nothingSet(n ast.Node) {
	p.fieldFault(n, "policies", "", "nothing is set: if that is intended, write policies: []")
}

func (p *fileParser) schema(n ast.Node) {
	text := n.GetToken().Value
	switch v, err := strconv.Atoi(text); {
	case err != nil || v < 1:
		p.fieldFault(n, "schema", text, fmt.Sprintf("invalid version: want %d", policy.Schema))
	case v != policy.Schema:
		p.fault(n, &policy.SchemaError{Have: v, Want: policy.Schema})
	}
}

// section reads the entries of a section. Of the cluster's settings there is one as a rule, which
// needs no list.
func (p *fileParser) section(section policy.Section, n ast.Node) {
	list, isList := n.(*ast.SequenceNode)
	switch _, isMapping := pairsOf(n); {
	case n.Type() == ast.NullType && section == policy.PolicySection:
		p.nothingSet(n)
	case n.Type() == ast.NullType:
	case isList:
		p.empty = p.empty || section == policy.PolicySection && len(list.Values) == 0
		for _, item := range list.Values {
			p.entry(section, item)
		}
	case isMapping && section.OfCluster():
		p.entry(section, n)
	default:
		p.fault(n, fmt.Errorf("%s: want a list", section))
	}
}

// An item is one item of a section while it is read.
type item struct {
	section      policy.Section
	at           map[string]ast.Node // by field
	scope        policy.Scope
	scoped       bool // scope was read
	subscription *string
	expires      time.Time
	settings     policy.Settings
}

// entry reads one item of a section.
func (p *fileParser) entry(section policy.Section, n ast.Node) {
	before := len(p.errs)
	pairs := p.mapping(n, "an item of "+section.String())
	if len(p.errs) > before {
		return
	}
	it := &item{section: section, at: map[string]ast.Node{}, settings: section.Zero()}
	for _, pair := range pairs {
		p.pair(it, "", pair)
	}
	p.validate(it, n)
	if len(p.errs) == before {
		p.add(it, n)
	}
}

// pair reads one field of an item, or a group of fields.
func (p *fileParser) pair(it *item, prefix string, pair *ast.MappingValueNode) {
	name, value := prefix+keyOf(pair), pair.Value
	it.at[name] = value
	if pairs, ok := pairsOf(value); ok && it.isGroup(name) {
		for _, inner := range pairs {
			p.pair(it, name+".", inner)
		}
		return
	}
	text, reason := it.textOf(name, value)
	if reason != "" {
		p.fieldFault(pair.Key, name, text, reason)
		return
	}
	var err error
	switch {
	case name == "scope" && !it.section.OfCluster():
		it.scope, err = policy.ParseScope(text)
		it.scoped = err == nil
	case name == "subscription" && it.section == policy.PolicySection:
		it.subscription = &text
	case name == "expires":
		it.expires, err = p.expires(text)
	case name == "schema":
		p.fieldFault(value, name, text, "not allowed here: want it once, for the file")
	case strings.Contains(keyOf(pair), "."):
		p.fieldFault(value, name, text, "unknown field: want a mapping, such as ramp: {over: 1m}")
	default:
		var one policy.Settings
		if one, err = it.section.ParseField(name, text); err == nil {
			it.settings = policy.Overlay(it.settings, one)
		}
	}
	for err := range flatten(err) {
		p.fault(value, err)
	}
}

func (it *item) isGroup(name string) bool {
	return slices.ContainsFunc(it.section.Fields(), func(f policy.Field) bool {
		return strings.HasPrefix(f.Name, name+".")
	})
}

func (it *item) isList(name string) bool {
	return slices.ContainsFunc(it.section.Fields(), func(f policy.Field) bool {
		return f.Name == name && f.List
	})
}

// textOf returns a value as the command line has it, or as it is written with the reason why it is
// invalid.
func (it *item) textOf(name string, value ast.Node) (text, reason string) {
	switch value := value.(type) {
	case *ast.LiteralNode:
		return value.Value.Value, ""
	case *ast.BoolNode:
		return strconv.FormatBool(value.Value), "" // for YAML's True
	case *ast.NullNode:
		return "", "empty: leave it out"
	case *ast.SequenceNode:
		if it.isList(name) {
			return it.textOfList(value)
		}
	case *ast.MappingNode, *ast.MappingValueNode, *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
	default:
		return value.GetToken().Value, ""
	}
	return strings.TrimSpace(value.String()), "invalid value: want a plain one"
}

func (it *item) textOfList(list *ast.SequenceNode) (text, reason string) {
	var items []string
	for _, n := range list.Values {
		text, reason := it.textOf("", n)
		if reason != "" {
			return strings.TrimSpace(list.String()), "invalid list: want plain names in it"
		}
		items = append(items, text)
	}
	return strings.Join(items, ","), ""
}

// validate reports the faults of an item for its scope.
func (p *fileParser) validate(it *item, n ast.Node) {
	settings, scope := it.settings, it.scope
	switch {
	case it.section.OfCluster():
	case it.at["scope"] == nil:
		p.fieldFault(n, "scope", "", "missing: want "+map[policy.Section]string{
			policy.PolicySection: "cluster, tenant/namespace, pattern:REGEX or the URL of a topic",
			policy.QuotaSection:  "tenant:NAME or tag:NAME",
		}[it.section])
		return
	case !it.scoped && it.section == policy.PolicySection:
		if it.subscription != nil {
			for err := range flatten(policy.ValidateSubscription(*it.subscription)) {
				p.fault(it.at["subscription"], err)
			}
		}
		settings = policy.Without(settings, "priority") // depends on the scope
	case !it.scoped:
		scope = policy.TenantScope("any")
	case it.subscription != nil:
		it.scope = it.scope.WithSubscription(*it.subscription)
		if scope = it.scope; scope.Validate() != nil {
			settings = policy.Without(settings, "priority")
		}
	}
	for err := range flatten(settings.Validate(scope)) {
		where := it.at["scope"]
		if fault, ok := errors.AsType[*policy.FieldError](err); ok && it.at[fault.Field] != nil {
			where = it.at[fault.Field]
		}
		p.fault(where, err)
	}
}

// add adds the entries of a valid item.
func (p *fileParser) add(it *item, n ast.Node) {
	at := line(cmp.Or(it.at["scope"], n))
	p.lines[it.scope] = at
	add := func(e policy.Entry) {
		key := configstore.KeyOf(e)
		if first, duplicate := p.seen[key]; duplicate {
			p.fieldFault(cmp.Or(it.at["scope"], n), "scope", it.scope.String(),
				fmt.Sprintf("duplicate of line %d: keep one of them", first))
			return
		}
		p.seen[key] = at
		p.entries = append(p.entries, e)
	}
	if it.at["expires"] == nil {
		add(policy.Entry{Scope: it.scope, Settings: it.settings})
		return
	}
	for _, field := range policy.Fields(it.settings) {
		add(policy.Entry{
			Scope: it.scope, Settings: policy.Only(it.settings, field),
			Temporary: true, Field: field, Expires: it.expires.UTC(),
		})
	}
}

// expires reads when a temporary entry expires.
func (p *fileParser) expires(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	reason := ""
	switch {
	case err != nil:
		reason = "invalid time: want 2026-01-02T15:04:05Z"
	case p.now.IsZero():
	case !t.After(p.now):
		reason = "in the past: remove the entry, or write a later time"
	case t.Sub(p.now) > configstore.MaxTTL:
		reason = fmt.Sprintf("more than %s away: write an earlier time, or leave it out",
			policy.Duration(configstore.MaxTTL))
	}
	if reason != "" {
		return time.Time{}, &policy.FieldError{Field: "expires", Value: text, Reason: reason}
	}
	return t, nil
}

// flatten yields the faults of a joined error.
func flatten(err error) func(yield func(error) bool) {
	return func(yield func(error) bool) {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range joined.Unwrap() {
				for e := range flatten(e) {
					if !yield(e) {
						return
					}
				}
			}
		} else if err != nil {
			yield(err)
		}
	}
}
