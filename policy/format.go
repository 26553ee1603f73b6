package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A format says how the values of a field are read, written and checked.
type format[V any] struct {
	isSet func(V) bool
	parse func(text string) (V, error) // its error is the reason
	text  func(V) string               // what parse reads
	check func(V) error                // the reason why a value is out of range
	want  string                       // what is valid, for errors and the reference
	json  jsonForm
}

// A jsonForm is how values look in JSON and YAML.
type jsonForm struct {
	quote  bool           // they are text
	list   bool           // they are lists of text
	schema map[string]any // the JSON Schema of a value
}

// rates are those of messages.
func rates(maxPerSecond int64) format[Rate] {
	f := format[Rate]{
		isSet: func(r Rate) bool { return r != Rate{} },
		parse: func(text string) (Rate, error) { return parseRate(text, false) },
		text:  Rate.String,
		check: func(r Rate) error { return r.check(maxPerSecond) },
		want:  rateForms,
	}
	f.json = textOrNumber(`^[0-9]+(/([0-9.]+)?(ns|us|ms|s|m|h))?$`)
	return f
}

// byteRates are rates of bytes.
func byteRates(maxPerSecond int64) format[Rate] {
	f := rates(maxPerSecond)
	f.parse = func(text string) (Rate, error) { return parseRate(text, true) }
	f.want = byteForms
	f.json = textOrNumber(`^[0-9]+ *([kKMGT]i?)?B?(/([0-9.]+)?(ns|us|ms|s|m|h))?$`)
	return f
}

func textOrNumber(pattern string) jsonForm {
	return jsonForm{quote: true, schema: map[string]any{
		"type": []string{"string", "integer"}, "pattern": pattern, "minimum": 0,
	}}
}

// throughputs are bytes of cost a second.
func throughputs() format[*int64] {
	f := integers[int64](0, MaxThroughput)
	f.parse = func(text string) (*int64, error) {
		n, err := parseThroughput(text)
		return &n, err
	}
	f.want = throughputForms
	f.json.schema = textOrNumber(`^[0-9]+ *([kKMGT]i?)?B?(/s)?$`).schema
	return f
}

// integers are whole numbers within bounds.
func integers[N int | int64](lowest, highest N) format[*N] {
	want := fmt.Sprintf("%d..%d", lowest, highest)
	return format[*N]{
		isSet: func(n *N) bool { return n != nil },
		parse: func(text string) (*N, error) {
			n, err := strconv.ParseInt(text, 10, strconv.IntSize)
			if errors.Is(err, strconv.ErrRange) {
				return nil, outOfRange(want)
			} else if err != nil {
				return nil, errors.New("invalid whole number: want " + want)
			}
			v := N(n)
			return &v, nil
		},
		text: func(n *N) string { return strconv.FormatInt(int64(*n), 10) },
		check: func(n *N) error {
			if *n < lowest || *n > highest {
				return outOfRange(want)
			}
			return nil
		},
		want: want,
		json: jsonForm{
			schema: map[string]any{"type": "integer", "minimum": lowest, "maximum": highest},
		},
	}
}

// decimals are numbers within bounds.
func decimals(lowest, highest float64) format[*float64] {
	write := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	want := write(lowest) + ".." + write(highest)
	return format[*float64]{
		isSet: func(x *float64) bool { return x != nil },
		parse: func(text string) (*float64, error) {
			x, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, errors.New("invalid number: want " + want)
			}
			return &x, nil
		},
		text: func(x *float64) string { return write(*x) },
		check: func(x *float64) error {
			if !(*x >= lowest && *x <= highest) { // NaN is neither
				return outOfRange(want)
			}
			return nil
		},
		want: want,
		json: jsonForm{
			schema: map[string]any{"type": "number", "minimum": lowest, "maximum": highest},
		},
	}
}

// durations are lengths of time within bounds.
func durations(shortest, longest time.Duration) format[Duration] {
	want := Duration(shortest).String() + ".." + Duration(longest).String()
	return format[Duration]{
		isSet: func(d Duration) bool { return d != 0 },
		parse: func(text string) (Duration, error) {
			d, err := ParseDuration(text)
			if err != nil || d == math.MaxInt64 || d == 0 { // 0 means "not set"
				return 0, errors.New("invalid duration: want " + want)
			}
			return Duration(d), nil
		},
		text: Duration.String,
		check: func(d Duration) error {
			if time.Duration(d) < shortest || time.Duration(d) > longest {
				return outOfRange(want)
			}
			return nil
		},
		want: want,
		json: jsonForm{quote: true, schema: map[string]any{
			"type": "string", "pattern": `^([0-9.]+(ns|us|ms|s|m|h))+$`,
		}},
	}
}

// switches are true or false.
func switches() format[*bool] {
	return format[*bool]{
		isSet: func(b *bool) bool { return b != nil },
		parse: func(text string) (*bool, error) {
			b := text == "true"
			if !b && text != "false" {
				return nil, errors.New("invalid value: want true or false")
			}
			return &b, nil
		},
		text:  func(b *bool) string { return strconv.FormatBool(*b) },
		check: func(*bool) error { return nil },
		want:  "true or false",
		json:  jsonForm{schema: map[string]any{"type": "boolean"}},
	}
}

// choices are one of some words.
func choices[W ~string](words ...W) format[W] {
	var all []string
	for _, w := range words {
		all = append(all, string(w))
	}
	want := enumerate(all, "or")
	return format[W]{
		isSet: func(w W) bool { return w != "" },
		parse: func(text string) (W, error) { return W(text), nil },
		text:  func(w W) string { return string(w) },
		check: func(w W) error {
			if !slices.Contains(words, w) {
				return errors.New("unknown value: want " + want)
			}
			return nil
		},
		want: want,
		json: jsonForm{quote: true, schema: map[string]any{"enum": all}},
	}
}

// maxNames bounds a list of names.
const maxNames = 100

const nameSyntax = `^[A-Za-z0-9._-]{1,63}$`

var nameRegex = regexp.MustCompile(nameSyntax)

// names are lists of different names: of these, or of any if there are none.
func names(known ...string) format[[]string] {
	want, fault := "letters, digits, '.', '_' and '-' in names, such as a,b", "invalid"
	item := map[string]any{"type": "string", "pattern": nameSyntax}
	valid := nameRegex.MatchString
	if len(known) > 0 {
		fault = "unknown"
		want = enumerate(known, "and") + ", such as " + known[0] + "," + known[len(known)-1]
		item = map[string]any{"enum": known}
		valid = func(name string) bool { return slices.Contains(known, name) }
	}
	return format[[]string]{
		isSet: func(list []string) bool { return len(list) > 0 },
		parse: func(text string) ([]string, error) { return strings.Split(text, ","), nil },
		text:  func(list []string) string { return strings.Join(list, ",") },
		check: func(list []string) error {
			for i, name := range list {
				if !valid(name) {
					return fmt.Errorf("%s name %q: want %s", fault, name, want)
				}
				if slices.Contains(list[:i], name) {
					return fmt.Errorf("duplicate name %q: want it once", name)
				}
			}
			if len(list) > maxNames {
				return fmt.Errorf("%d names: want at most %d", len(list), maxNames)
			}
			return nil
		},
		want: want,
		json: jsonForm{list: true, schema: map[string]any{
			"type": "array", "items": item, "minItems": 1, "maxItems": maxNames,
			"uniqueItems": true,
		}},
	}
}

func outOfRange(want string) error { return errors.New("out of range: want " + want) }

// enumerate returns "a, b or c".
func enumerate(words []string, conjunction string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}

// textOf returns the text of a JSON value as the command line has it: a list with commas between
// its items. ok is false for what no field can be.
func textOf(raw json.RawMessage) (text string, isList, ok bool) {
	var v any
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.UseNumber()
	if decoder.Decode(&v) != nil {
		return "", false, false
	}
	switch v := v.(type) {
	case string:
		return v, false, true
	case bool, json.Number:
		return fmt.Sprint(v), false, true
	case []any:
		var items []string
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return "", true, false
			}
			items = append(items, s)
		}
		return strings.Join(items, ","), true, true
	}
	return "", false, false
}
