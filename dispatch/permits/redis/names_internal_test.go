package redispermits

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// Each line has the name of a number in the script, and its field in Go.
const (
	requestNames = `
	weight Weight
	reserved Reserved
	demand Demand
	want Want
	returned Returned
	held Held
	rtt RTT
	T Round
	burst Burst
	newRate Rate
	newRevEpoch Rev.Epoch
	newRev Rev.Number
	notAfter NotAfter
	nonce Nonce
	cInc Carry.Inc
	cSeq Carry.Seq
	cEpoch Carry.Epoch
	cEff Carry.Eff
	cFraction Carry.Fraction
	cRound Carry.Round
	strict Strict
	maxReserved MaxReserved
	newFrom Ramp.From
	newOver Ramp.Over
	newTTL Ramp.TTL
	newRelaxed Ramp.Relaxed
	clockLow Low
	clockHigh High
	cShifts Carry.Shifts
	cRefused Carry.Refused
	newLead Lead`
	ruleNames = `
	mode Rule.Mode
	minRate Rule.MinRate
	tolerance Rule.Tolerance
	recoverRate Rule.RecoverRate
	recoverValue Rule.RecoverValue
	answeredOK Answers.OK
	answeredBusy Answers.Busy
	retryAfter Answers.RetryAfter`
	stateNames = `
	inc Inc
	seq Seq
	last Last
	revEpoch Rev.Epoch
	rev Rev.Number
	rate Rate
	tail Tail
	epoch Epoch
	start Start
	w0 This.Weight
	r0 This.Reserved
	n0 This.Need
	w1 Prev.Weight
	r1 Prev.Reserved
	n1 Prev.Need
	resumed Resumed
	shifts Shifts
	stepBy Step.By
	stepAhead Step.Ahead
	stepAt Step.At
	server Server
	checked Checked
	quick Quick`
	rampNames = `
	top Top
	rampFrom Ramp.From
	over Ramp.Over
	ttl Ramp.TTL
	relaxed Ramp.Relaxed
	lineRate Line.Rate
	lineEpoch Line.Epoch
	seen Line.Seen`
	outcomeNames = `
	top Top
	busyLimit Outcomes.Service.Limit
	low Outcomes.Service.Low
	good Outcomes.Service.Good
	since Outcomes.Service.Since
	cut Outcomes.Service.Cut
	back Outcomes.Service.Back
	rise Outcomes.Service.Step
	notYet Outcomes.Service.NotYet
	healthy Outcomes.Service.Healthy
	seenOK Outcomes.Window.OK
	seenBusy Outcomes.Window.Busy
	seenRetry Outcomes.Window.RetryAfter
	window Outcomes.Since`
	replyNames = `
	now Now
	n N
	from Start
	share Share
	rate Rate
	gap Gap
	lead Lead
	inc Carry.Inc
	replySeq_or_seq Carry.Seq
	replyEpoch Carry.Epoch
	eff Carry.Eff
	fraction Carry.Fraction
	round Carry.Round
	stepAhead Ahead
	now_-_resumed Since
	shifts Carry.Shifts
	refused Carry.Refused`
)

// inScript are the names in all lists of the script that a pattern matches, which are the same.
func inScript(t *testing.T, pattern string) (names []string) {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(allocateLua, -1)
	require.NotEmpty(t, found, pattern)
	for _, f := range found {
		list := regexp.MustCompile(`\s*,\s*`).Split(strings.TrimSpace(f[1]), -1)
		if names == nil {
			names = list
		}
		require.Equal(t, names, list)
	}
	return names
}

// fields are the paths of fields in Go, in the order of the names.
func fields(t *testing.T, names []string, table string) (paths []string) {
	t.Helper()
	words := strings.Fields(table)
	require.Len(t, names, len(words)/2)
	byName := map[string]string{}
	for i := 0; i < len(words); i += 2 {
		byName[strings.ReplaceAll(words[i], "_", " ")] = words[i+1]
	}
	for _, name := range names {
		require.Contains(t, byName, name)
		paths = append(paths, byName[name])
	}
	return paths
}

// at is the field with that path.
func at(value any, path string) reflect.Value {
	v := reflect.ValueOf(value).Elem()
	for name := range strings.SplitSeq(path, ".") {
		v = v.FieldByName(name)
	}
	return v
}

// number is a field as the script has it.
func number(v reflect.Value) float64 {
	switch {
	case v.CanFloat():
		return v.Float()
	case v.CanInt():
		return float64(v.Int())
	}
	return flag(v.Bool())
}

// set makes a field 1.
func set(v reflect.Value) {
	switch {
	case v.CanFloat():
		v.SetFloat(1)
	case v.CanInt():
		v.SetInt(1)
	default:
		v.SetBool(true)
	}
}

// one are n numbers, all 0 but for the i-th.
func one(n, i int) []byte {
	x := make([]float64, n)
	x[i] = 1
	return encode(x...)
}

// TestArguments: each number of a request is where the script looks for it.
func TestArguments(t *testing.T) {
	for _, c := range []struct {
		argument       int
		pattern, table string
	}{
		{1, `local (weight[\w\s,]+)=\s+unpack\('<d+', ARGV\[2\]\)`, requestNames},
		{4, `\n  (mode[\w\s,]+)=\s+unpack\('<d+', ARGV\[5\]\)`, ruleNames},
	} {
		paths := fields(t, inScript(t, c.pattern), c.table)
		for i, path := range paths {
			var r schedule.Request
			want := one(len(paths), i)
			if c.argument == 4 && path != "Rule.Mode" {
				r.Rule.Mode = busy.Mode(1)
				want = encode(append([]float64{1}, make([]float64, len(paths)-1)...)...)
				copy(want[8*i:], encode(1))
			}
			set(at(&r, path))
			assert.Equal(t, want, arguments(&r)[c.argument], path)
		}
	}
}

// TestStored: each number of a state is read where the script writes it, and written by the script
// where it reads it.
func TestStored(t *testing.T) {
	const list = `((?:\w+,\s+)+\w+)`
	for _, c := range []struct {
		patterns []string
		table    string
		parse    func(text string, s *schedule.State)
	}{
		{[]string{list + `\s+= unpack\('<d{23}', state, 3\)`, `'4 '\) \.\. pack\('<d{23}', ` + list + `\)`}, stateNames,
			func(text string, s *schedule.State) {
				var err error
				*s, err = parseState("4 " + text)
				require.NoError(t, err)
			}},
		{[]string{list + ` = unpack\('<d{8}', stored\[3\]\)`, `'r', pack\('<d{8}', ` + list + `\)`}, rampNames, parseRamp},
		{[]string{list + `\s+= unpack\('<d{14}', stored\[4\]\)`, `'b', pack\('<d{14}', ` + list + `\)`}, outcomeNames, parseOutcomes},
	} {
		for _, pattern := range c.patterns {
			paths := fields(t, inScript(t, pattern), c.table)
			for i := range paths {
				var s schedule.State
				c.parse(string(one(len(paths), i)), &s)
				for j, path := range paths {
					assert.InDelta(t, flag(i == j), number(at(&s, path)), 0, "%s, for %s", path, paths[i])
				}
			}
		}
	}
}

// TestReplies: each number of a reply is read where the script puts it.
func TestReplies(t *testing.T) {
	paths := fields(t, inScript(t, `return pack\('<d{18}', damaged and 2 or 0, ([^)]+)\)`), replyNames)
	for i := range paths {
		r, err := parseReply(string(one(1+len(paths), 1+i)))
		require.NoError(t, err)
		for j, path := range paths {
			assert.InDelta(t, flag(i == j), number(at(&r, path)), 0, "%s, for %s", path, paths[i])
		}
	}
}

// TestSteps: the script has the steps of schedule.Allocate in its order.
func TestSteps(t *testing.T) {
	source, err := os.ReadFile("../../schedule/allocate.go")
	require.NoError(t, err)
	_, body, _ := strings.Cut(string(source), "\nfunc Allocate(")
	body, _, _ = strings.Cut(body, "\n}")
	common, own, _ := strings.Cut(body, "if r.Strict {")
	strict, shared, _ := strings.Cut(own, "} else {")
	calls := regexp.MustCompile(`\ba\.(\w+)\(\)`)
	for _, line := range []string{strict, shared} {
		last := 0
		steps := calls.FindAllStringSubmatch(common+line, -1)
		require.Greater(t, len(steps), 7)
		for _, step := range steps {
			comment := regexp.MustCompile(`-- ` + step[1] + `\b`).FindStringIndex(allocateLua)
			require.NotNil(t, comment, step[1])
			assert.Greater(t, comment[0], last, step[1])
			last = comment[0]
		}
	}
}

// TestSources: whose policies a limit has is read from where the script writes it.
func TestSources(t *testing.T) {
	rev := schedule.Revision{Epoch: 7, Number: 8}
	text := string(encode(7, 8, 0)) + "\x01a"
	s := schedule.State{Rev: rev}
	parseSources(text, &s)
	assert.Equal(t, schedule.State{Rev: rev, Source: "a"}, s)

	text = string(encode(7, 8, 9)) + "\x01a" + string(encode(1, 2, 3, 4, 5, 6, 1, 10)) + "\x02bc"
	s = schedule.State{Rev: rev}
	parseSources(text, &s)
	assert.Equal(t, schedule.State{
		Rev: rev, Source: "a", Heard: 9, Rival: schedule.Claim{
			Source: "bc", Rev: schedule.Revision{Epoch: 1, Number: 2}, Rate: 3,
			Ramp: schedule.Ramp{From: 4, Over: 5, TTL: 6, Relaxed: true}, Heard: 10,
		},
	}, s)
	assert.Contains(t, allocateLua, "pack('<ddd', e, r, rival and heardAt or 0) .. string.char(#source) .. source")

	other := schedule.State{Rev: schedule.Revision{Epoch: 7, Number: 9}}
	parseSources(text, &other)
	assert.Empty(t, other.Source, "of another revision")
	for i := range text {
		parseSources(text[:i], &schedule.State{Rev: rev}) // does not panic
	}
}
