package permitstest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Backend is the permit store of random sequences. The zero value simulates one.
type Backend struct {
	// Open returns the permit store of one sequence, which shares nothing with those of others.
	// Nil: it is simulated.
	Open func(t *testing.T) dispatch.PermitStore

	// Lose makes the permit store lose everything. Nil: a real one does not.
	Lose func()

	// Tallies is a file that tallies are added to, one for each mode and thousand seeds; "" = none.
	// Seeds whose tallies it has are left out.
	Tallies string

	// RealTime: the permit store cannot run in a synctest bubble, and timers are as late as the
	// machine makes them.
	RealTime bool
}

// Long reports whether tests may take long: THROTTLE_LONG is set.
func Long() bool { return os.Getenv("THROTTLE_LONG") != "" }

// Seeds are those of [Between]: the first short ones, or with THROTTLE_LONG those from there up to
// long.
func Seeds(t *testing.T, short, long int) []uint64 {
	if Long() {
		return Between(t, short, long)
	}
	return Between(t, 0, short)
}

// Between returns the seeds to run: that of THROTTLE_SEED; else those of THROTTLE_SEEDS, which is
// "10000", the first ten thousand, or "10000-20000", those from 10000 to 19999; else those from
// first to last-1.
func Between(t *testing.T, first, last int) (all []uint64) {
	if text := os.Getenv("THROTTLE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		return []uint64{seed}
	}
	from, to := uint64(first), uint64(last)
	if text := os.Getenv("THROTTLE_SEEDS"); text != "" {
		first, end, ok := strings.Cut(text, "-")
		if !ok {
			first, end = "0", text
		}
		var err error
		from, err = strconv.ParseUint(first, 10, 64)
		require.NoError(t, err)
		to, err = strconv.ParseUint(end, 10, 64)
		require.NoError(t, err)
	}
	for seed := from; seed < to; seed++ {
		all = append(all, seed)
	}
	return all
}

// Quarter is n, or with -short a quarter of it: make test runs all seeds in virtual time, and the
// quarter again with the race detector.
func Quarter(n int) int {
	if testing.Short() {
		return (n + 3) / 4
	}
	return n
}

// Run runs random sequences of faults for each sharing mode on a backend: replicas that join,
// leave and crash, connections that are cut for a while, rates that change, a store that freezes,
// loses its state, restores an old one, loses and doubles requests, and whose clock steps.
// After each sequence the limit must be used. A sequence that breaks the mode's promise is made
// as short as possible, and printed. (The clocks of clients cannot break anything: no Limiter
// reads the time of day.)
func Run(t *testing.T, b Backend, seeds []uint64) {
	tallies := openTallies(t, b.Tallies)
	if b.Tallies != "" { // slices of other runs must be the same
		require.Zero(t, seeds[0]%sliceSize, "first seed: want a multiple of %d", sliceSize)
		require.Zero(t, len(seeds)%sliceSize, "number of seeds: want a multiple of %d", sliceSize)
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for slice := range slices.Chunk(seeds, sliceSize) {
				if tallies.has(m, slice) {
					continue
				}
				counts := newTally(m, slice)
				for _, seed := range slice {
					if t.Failed() && b.Tallies == "" {
						return
					}
					b.check(t, m, seed, &counts)
				}
				tallies.add(t, counts)
			}
		})
	}
}

// check runs the sequence of a seed, and fails the test if it breaks the mode's promise.
func (b Backend) check(t *testing.T, m mode, seed uint64, counts *tally) {
	steps := m.draw(seed, b)
	r := b.try(t, m, seed, steps)
	counts.count(r)
	if r.wrong != "" {
		steps, wrong := b.shrink(t, m, seed, steps, r.wrong)
		t.Errorf("%s; replay with THROTTLE_SEED=%d\nthe shortest sequence found:\n%s",
			wrong, seed, text(steps))
	}
}

// A step is one event. All that is random in it was drawn beforehand, so that it does the same in
// a shorter sequence.
type step struct {
	op    string
	n     int // of which, or how much
	d     time.Duration
	pause time.Duration // after it
}

func (s step) String() string {
	return fmt.Sprintf("%s %d %v, then %v pass", s.op, s.n, s.d, s.pause)
}

func text(steps []step) string {
	var lines []string
	for _, s := range steps {
		lines = append(lines, "\t"+s.String())
	}
	return strings.Join(lines, "\n")
}

// A mode is a sharing mode, with the events of its schedules and its guarantees.
type mode struct {
	name   string
	rate   int64
	policy policy.Policy
	ops    []string // besides commonOps
	right  func(*run) string
}

var commonOps = []string{
	"join", "join", "join", "leave", "crash", "cut", "freeze", "lossy", "lossless",
}

const ttl = time.Second

var modes = []mode{
	{"fair", 400, policy.Policy{},
		[]string{"rate", "rate", "forget", "keep", "restore", "double", "skew", "skew a little"},
		(*run).neverOver},
	{"strict", 20, policy.Policy{Sharing: policy.Sharing{Mode: policy.Strict}},
		[]string{"double", "forget", "keep", "restore"}, (*run).neverNear},
	{"strict, in a queue", 20, policy.Policy{Sharing: policy.Sharing{
		Mode: policy.Strict, Wait: policy.WaitQueue, MaxReserved: new(int64(2)),
	}}, []string{"double", "forget", "keep", "restore"}, (*run).neverNear},
	{"split", 100, policy.Policy{Sharing: policy.Sharing{
		Mode: policy.Split, PoolTTL: policy.Duration(ttl),
	}}, []string{"ramp", "forget"}, (*run).neverMore},
	{"groups", 100, policy.Policy{Sharing: policy.Sharing{
		Mode: policy.Groups, PoolTTL: policy.Duration(ttl), Groups: []string{"0", "1"},
	}}, []string{"ramp", "forget"}, (*run).neverMore},
}

// draw makes a sequence.
func (m mode) draw(seed uint64, b Backend) (steps []step) {
	rng := rand.New(rand.NewPCG(seed, 3))
	ops := append(slices.Clone(commonOps), m.ops...)
	steps = append(steps, step{"join", rng.IntN(100), 0, 0})
	n := 10 + rng.IntN(6)
	if b.RealTime {
		n /= 2
	}
	for range n {
		s := step{
			ops[rng.IntN(len(ops))], rng.IntN(100),
			time.Duration(rng.Int64N(int64(time.Second))),
			time.Duration(rng.Int64N(int64(600 * time.Millisecond))),
		}
		if b.can(s.op) {
			steps = append(steps, s)
		}
	}
	return steps
}

// can reports whether a backend can do that step.
func (b Backend) can(op string) bool {
	switch op {
	case "keep", "restore", "skew", "skew a little":
		return b.Open == nil
	case "forget":
		return b.Open == nil || b.Lose != nil
	}
	return true
}

// shrink leaves out steps while the rest still breaks the promise.
func (b Backend) shrink(
	t *testing.T, m mode, seed uint64, steps []step, wrong string,
) ([]step, string) {
	for i := 0; i < len(steps); {
		fewer := slices.Delete(slices.Clone(steps), i, i+1)
		if still := b.try(t, m, seed, fewer).wrong; still != "" {
			steps, wrong, i = fewer, still, 0
		} else {
			i++
		}
	}
	return steps, wrong
}

// try runs a sequence.
func (b Backend) try(t *testing.T, m mode, seed uint64, steps []step) (r *run) {
	once := func(t *testing.T) {
		r = b.start(t, m, seed)
		for _, s := range steps {
			r.do(s)
			time.Sleep(s.pause)
		}
		r.recover()
		r.end()
		r.wrong = cmp.Or(r.right(), r.stuck)
	}
	if b.RealTime {
		once(t)
	} else {
		synctest.Test(t, once)
	}
	return r
}
