package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
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

// Parse reads a file of policies, YAML or JSON; name is for its errors, which join a *[LineError] for each fault:
//
//	schema: 1
//	policies:
//	  - scope: kafka://public/default/orders
//	    subscription: billing        # optional
//	    messageRate: 1000/s          # and any other field of a policy
//	    expires: 2026-01-02T15:04:05Z # optional: temporary until then
//
// A temporary entry comes back as one entry for each of its fields. One that is over, or would live longer
// than [configstore.MaxTTL], is refused.
func Parse(name string, data []byte) ([]policy.Entry, error) { return ParseAt(name, data, time.Now()) }

// ParseAt is Parse at now. If now is zero, entries may end whenever they like: a file that is a store keeps those that are over.
func ParseAt(name string, data []byte, now time.Time) ([]policy.Entry, error) {
	p := &fileParser{name: name, now: now, seen: make(map[configstore.Key]int), lines: make(map[policy.Scope]int)}
	if len(data) > MaxSize {
		p.fault(nil, fmt.Errorf("%d bytes are more than the %d that a file may have", len(data), MaxSize))
		return nil, errors.Join(p.errs...)
	}
	tokens := lexer.Tokenize(strings.TrimPrefix(string(data), "\uFEFF")) // without the mark that some editors put first
	if at := tooDeep(tokens); at > 0 {
		return nil, &LineError{name, at, fmt.Errorf("is nested more than %d deep, which no policy is", maxDepth)}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		p.fault(nil, err)
		var syntax yaml.Error
		if errors.As(err, &syntax) {
			p.errs[0] = &LineError{name, syntax.GetToken().Position.Line, errors.New(syntax.GetMessage())}
		}
		return nil, errors.Join(p.errs...)
	}
	for i, doc := range file.Docs {
		if i > 0 && doc.Body != nil {
			p.fault(doc.Body, errors.New("is a second document: put all policies into one"))
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

// maxDepth is how deep brackets and lists may nest; the parser's time grows with the square of it.
const maxDepth = 50

// tooDeep is the line in which more than maxDepth brackets are open, or list items and keys follow each other, or 0.
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
		case token.CollectEntryType: // a comma: the next one is beside, not within
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
	seen    map[configstore.Key]int // line
	lines   map[policy.Scope]int
	errs    []error
}

func (p *fileParser) fault(at ast.Node, err error) {
	p.errs = append(p.errs, &LineError{p.name, line(at), err})
}

func line(n ast.Node) int {
	if n == nil || n.GetToken() == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

// mapping returns the pairs of a mapping; the parser has refused a key that comes twice.
func (p *fileParser) mapping(n ast.Node, what string) []*ast.MappingValueNode {
	var pairs []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	default:
		p.fault(n, fmt.Errorf("%s is no mapping of names to values", what))
	}
	return pairs
}

func keyOf(pair *ast.MappingValueNode) string { return pair.Key.GetToken().Value }

func (p *fileParser) root(body ast.Node) {
	if body == nil {
		p.fault(nil, errors.New("is empty: write schema: 1 and policies: []"))
		return
	}
	schema := false
	for _, pair := range p.mapping(body, "the file") {
		switch key := keyOf(pair); key {
		case "schema":
			schema = true
			p.schema(pair.Value)
		case "policies":
			switch list := pair.Value.(type) {
			case *ast.SequenceNode:
				for _, n := range list.Values {
					p.entry(n)
				}
			case *ast.NullNode:
			default:
				p.fault(pair.Value, errors.New("policies is no list"))
			}
		default:
			p.fault(pair.Key, &policy.FieldError{Field: key, Reason: "is an unknown field: write schema and policies"})
		}
	}
	if !schema {
		p.fault(body, &policy.FieldError{Field: "schema", Reason: fmt.Sprintf("is missing: write schema: %d", policy.Schema)})
	}
}

func (p *fileParser) schema(n ast.Node) {
	v, err := strconv.Atoi(n.GetToken().Value)
	switch {
	case err != nil || v < 1:
		p.fault(n, &policy.FieldError{Field: "schema", Value: n.GetToken().Value, Reason: fmt.Sprintf("is no version: write %d", policy.Schema)})
	case v > policy.Schema:
		p.fault(n, &policy.SchemaError{Have: v, Newest: policy.Schema})
	}
}

// entry reads one item of the list.
func (p *fileParser) entry(n ast.Node) {
	before := len(p.errs)
	pairs := p.mapping(n, "a policy")
	if len(p.errs) > before {
		return
	}
	var scope policy.Scope
	var pol policy.Policy
	var expires time.Time
	var subscription *string
	scoped := false
	at := map[string]ast.Node{}
	for _, pair := range pairs {
		key, value := keyOf(pair), pair.Value
		at[key] = value
		text := value.GetToken().Value
		var err error
		switch value := value.(type) {
		case *ast.LiteralNode:
			text = value.Value.Value
		case *ast.NullNode:
			p.fault(pair.Key, &policy.FieldError{Field: key, Reason: "is empty: leave it out"})
			continue
		case *ast.MappingNode, *ast.MappingValueNode, *ast.SequenceNode, *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
			p.fault(value, &policy.FieldError{Field: key, Value: strings.TrimSpace(value.String()), Reason: "is no plain value"})
			continue
		}
		switch key {
		case "scope":
			scope, err = policy.ParseScope(text)
			scoped = err == nil
		case "subscription":
			subscription = &text
		case "expires":
			expires, err = p.expires(text)
		case "schema":
			err = &policy.FieldError{Field: key, Value: text, Reason: "belongs to the file, not to a policy"}
		default:
			var one policy.Policy
			if b, ok := value.(*ast.BoolNode); ok {
				text = strconv.FormatBool(b.Value) // of YAML's True
			}
			one, err = policy.ParseField(key, text)
			pol = pol.Overlay(one)
		}
		for err := range flatten(err) {
			p.fault(value, err)
		}
	}
	switch {
	case at["scope"] == nil:
		p.fault(n, &policy.FieldError{Field: "scope", Reason: "is missing: write cluster, tenant/namespace, pattern:REGEX or the URL of a topic"})
		return
	case !scoped:
		pol = pol.Without("priority") // which depends on the scope
		if subscription != nil {
			for err := range flatten(policy.ValidateSubscription(*subscription)) {
				p.fault(at["subscription"], err)
			}
		}
	case subscription != nil:
		if scope = scope.WithSubscription(*subscription); scope.Validate() != nil {
			pol = pol.Without("priority")
		}
	}
	for err := range flatten(pol.Validate(scope)) {
		where := at["scope"]
		if fault, ok := errors.AsType[*policy.FieldError](err); ok && at[fault.Field] != nil {
			where = at[fault.Field]
		}
		p.fault(where, err)
	}
	if len(p.errs) > before {
		return
	}
	p.lines[scope] = line(at["scope"])
	add := func(e policy.Entry) {
		if first, twice := p.seen[configstore.KeyOf(e)]; twice {
			p.fault(at["scope"], &policy.FieldError{Field: "scope", Value: scope.String(), Reason: fmt.Sprintf("is the same as in line %d: keep one of them", first)})
			return
		}
		p.seen[configstore.KeyOf(e)] = line(at["scope"])
		p.entries = append(p.entries, e)
	}
	if at["expires"] == nil {
		add(policy.Entry{Scope: scope, Policy: pol})
		return
	}
	for field := range policy.Fields() {
		if pol.Has(field) {
			add(policy.Entry{Scope: scope, Policy: pol.Only(field), Temporary: true, Field: field, Expires: expires.UTC()})
		}
	}
}

// expires reads when a temporary entry ends.
func (p *fileParser) expires(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	reason := ""
	switch {
	case err != nil:
		reason = "is no time: write 2026-01-02T15:04:05Z"
	case p.now.IsZero():
	case !t.After(p.now):
		reason = "is over: remove the policy, or write a later time"
	case t.Sub(p.now) > configstore.MaxTTL:
		reason = fmt.Sprintf("is more than %s away: write an earlier time, or leave it out", policy.Duration(configstore.MaxTTL))
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

// Format returns a YAML file that Parse reads as these entries. Entries that could not be read are
// left out, for their text is not a policy.
func Format(entries []policy.Entry) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "schema: %d\npolicies:", policy.Schema)
	items := content(entries).Policies
	if len(items) == 0 {
		out.WriteString(" []")
	}
	out.WriteByte('\n')
	for _, item := range items {
		data, err := json.Marshal(item)
		if err != nil {
			return nil, err
		}
		dec := json.NewDecoder(bytes.NewReader(data)) // keeps the order of the fields
		dec.UseNumber()
		_, _ = dec.Token() // {
		for indent := "  - "; dec.More(); indent = "    " {
			key, _ := dec.Token()
			value, err := dec.Token()
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&out, "%s%s: %s\n", indent, key, scalar(fmt.Sprint(key), value))
		}
	}
	return out.Bytes(), nil
}

// plain text is text to every reader of YAML, unless it is one of words, which to some are something else.
var (
	plain = regexp.MustCompile(`^[A-Za-z]([-\w./:]*[-\w./])?$`)
	words = regexp.MustCompile(`(?i)^(null|true|false|yes|no|on|off|y|n)$`)
)

// scalar writes names that are not plain as JSON does, which is YAML, too. The rates, times and words of other fields need no quotes.
func scalar(key string, value any) string {
	text, ok := value.(string)
	name := key == "scope" || key == "subscription"
	if !ok || !name || plain.MatchString(text) && !words.MatchString(text) {
		return fmt.Sprint(value)
	}
	quoted, _ := json.Marshal(text) // text cannot fail
	return string(quoted)
}

// FormatJSON returns a JSON file that Parse reads as these entries, as Format does.
func FormatJSON(entries []policy.Entry) ([]byte, error) {
	data, err := json.MarshalIndent(content(entries), "", "  ")
	return append(data, '\n'), err
}

type fileJSON struct {
	Schema   int         `json:"schema"`
	Policies []entryJSON `json:"policies"`
}

type entryJSON struct {
	Scope        string    `json:"scope"`
	Subscription string    `json:"subscription,omitempty"`
	Expires      time.Time `json:"expires,omitzero"`
	policy.Policy
}

func content(entries []policy.Entry) fileJSON {
	out := fileJSON{Schema: policy.Schema, Policies: []entryJSON{}}
	for _, e := range slices.SortedFunc(slices.Values(entries), policy.Entry.Compare) {
		if e.Err != nil {
			continue
		}
		j := entryJSON{Scope: e.Scope.String(), Expires: e.Expires, Policy: e.Policy}
		if e.Scope.Kind == policy.SubscriptionKind {
			j.Scope, j.Subscription = e.Scope.Topic.String(), e.Scope.Subscription
		}
		out.Policies = append(out.Policies, j)
	}
	return out
}
