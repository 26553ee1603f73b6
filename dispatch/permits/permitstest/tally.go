package permitstest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sliceSize is how many seeds a tally is of, at most.
const sliceSize = 1000

// A tally counts what the sequences of one mode did, those of a slice of seeds.
type tally struct {
	Program   string         `json:"program"` // that ran them; see program
	Mode      string         `json:"mode"`
	First     uint64         `json:"first"` // seed
	Sequences int            `json:"sequences"`
	Steps     map[string]int `json:"steps"`   // that were done, by kind
	Granted   int            `json:"granted"` // permits
	Least     float64        `json:"least"`   // see run
	Wrong     []uint64       `json:"wrong"`   // seeds whose sequences broke the promise
}

func newTally(m mode, seeds []uint64) tally {
	return tally{Mode: m.name, First: seeds[0], Steps: map[string]int{}, Least: 1}
}

// count adds a sequence.
func (t *tally) count(r *run) {
	one := tally{Sequences: 1, Steps: r.done, Least: r.least}
	for _, e := range r.dispatched.Events() {
		one.Granted += e.N
	}
	if r.wrong != "" {
		one.Wrong = []uint64{r.seed}
	}
	t.add(one)
}

// add adds the counts of another tally.
func (t *tally) add(o tally) {
	t.Sequences += o.Sequences
	t.Granted += o.Granted
	t.Least = min(t.Least, o.Least)
	t.Wrong = append(t.Wrong, o.Wrong...)
	for kind, n := range o.Steps {
		t.Steps[kind] += n
	}
}

// tallies are those in a file, of one program.
type tallies struct {
	file, program string // "" = none

	mu  sync.Mutex // guards all
	all []tally
}

// openTallies reads a file of tallies. Those of other programs are left out.
func openTallies(t *testing.T, file string) *tallies {
	ts := &tallies{file: file}
	if file == "" {
		return ts
	}
	ts.program = program(t)
	text, err := os.ReadFile(file)
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	for line := range bytes.Lines(text) {
		var one tally
		if json.Unmarshal(line, &one) == nil && one.Program == ts.program { // else it was cut short
			ts.all = append(ts.all, one)
		}
	}
	return ts
}

// program identifies the test binary: any change of what it tests makes another one.
func program(t *testing.T) string {
	file, err := os.Executable()
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return fmt.Sprintf("%.8x", sha256.Sum256(text))
}

// has reports whether the seeds have been run in a mode.
func (ts *tallies) has(m mode, seeds []uint64) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.ContainsFunc(ts.all, func(one tally) bool {
		return one.Mode == m.name && one.First == seeds[0] && one.Sequences == len(seeds)
	})
}

// add adds a tally to the file.
func (ts *tallies) add(t *testing.T, one tally) {
	if ts.file == "" {
		return
	}
	one.Program = ts.program
	text, err := json.Marshal(one)
	require.NoError(t, err)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.all = append(ts.all, one)
	f, err := os.OpenFile(ts.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	_, err = f.Write(append([]byte{'\n'}, text...)) // after a line that was cut short
	require.NoError(t, err)
}

// kinds are the steps in the table.
var kinds = []struct{ step, says string }{
	{"join", "replicas that join"},
	{"leave", "replicas that leave"},
	{"crash", "replicas that crash"},
	{"cut", "connections cut for up to a second"},
	{"freeze", "store frozen for up to a second"},
	{"lossy", "requests and replies lost from then on"},
	{"double", "requests doubled from then on"},
	{"forget", "state lost"},
	{"restore", "older state restored"},
	{"skew", "store's clock set by up to 5 s"},
	{"skew a little", "store's clock set by up to 0.2 s"},
	{"rate", "rates changed"},
	{"ramp", "ramps changed"},
}

// Table is what the tallies in a file say, with a column for each mode.
func Table(t *testing.T, file string) []byte {
	sums := make([]tally, len(modes)+1) // the last one is of all
	for i := range sums {
		sums[i] = tally{Steps: map[string]int{}, Least: 1}
	}
	for _, one := range openTallies(t, file).all {
		i := slices.IndexFunc(modes, func(m mode) bool { return m.name == one.Mode })
		sums[i].add(one)
		sums[len(modes)].add(one)
	}
	var b strings.Builder
	b.WriteString("| |")
	for _, m := range modes {
		fmt.Fprintf(&b, " %s |", m.name)
	}
	b.WriteString(" all |\n| --- |" + strings.Repeat(" ---: |", len(sums)) + "\n")
	row := func(says string, figure func(tally) string) {
		b.WriteString("| " + says + " |")
		for _, s := range sums {
			fmt.Fprintf(&b, " %s |", figure(s))
		}
		b.WriteString("\n")
	}
	number := func(n int) string { return cmp.Or(strings.TrimPrefix(fmt.Sprint(n), "0"), "-") }
	row("schedules", func(s tally) string { return number(s.Sequences) })
	for _, k := range kinds {
		row(k.says, func(s tally) string { return number(s.Steps[k.step]) })
	}
	row("permits granted", func(s tally) string { return number(s.Granted) })
	row("least part of the limit granted without faults", func(s tally) string {
		return fmt.Sprintf("%.0f %%", 100*s.Least)
	})
	row("promises broken", func(s tally) string { return fmt.Sprint(len(s.Wrong)) })
	return []byte(b.String())
}
