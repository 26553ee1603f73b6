package permitstest

import (
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

	// RealTime: the permit store cannot run in a synctest bubble, and timers are as late as the
	// machine makes them.
	RealTime bool
}

// Long reports whether tests may take long: THROTTLE_LONG is set.
func Long() bool { return os.Getenv("THROTTLE_LONG") != "" }

// Seeds returns the seeds to run: that of THROTTLE_SEED; else as many as THROTTLE_SEEDS says;
// else short or, with THROTTLE_LONG, long ones; with -short, a quarter of short.
func Seeds(t *testing.T, short, long int) (all []uint64) {
	if text := os.Getenv("THROTTLE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		return []uint64{seed}
	}
	if text := os.Getenv("THROTTLE_SEEDS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		short = n
	} else if Long() {
		short = long
	} else if testing.Short() {
		short = (short + 3) / 4
	}
	for seed := range short {
		all = append(all, uint64(seed))
	}
	return all
}

// Run runs random sequences of faults for each sharing mode on a backend: replicas that join,
// leave and crash, connections that are cut for a while, rates that change, a store that freezes,
// loses its state, restores an old one, loses and doubles requests, and whose clock steps.
// After each sequence the limit must be used. A sequence that breaks the mode's promise is made
// as short as possible, and printed. (The clocks of clients cannot break anything: no Limiter
// reads the time of day.)
func Run(t *testing.T, b Backend, seeds []uint64) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range seeds {
				if t.Failed() {
					return
				}
				steps := m.draw(seed, b)
				if wrong := b.try(t, m, seed, steps); wrong != "" {
					steps, wrong = b.shrink(t, m, seed, steps, wrong)
					t.Errorf("%s; replay with THROTTLE_SEED=%d\nthe shortest sequence found:\n%s",
						wrong, seed, text(steps))
				}
			}
		})
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
	}}, []string{"ramp"}, (*run).neverMore},
	{"groups", 100, policy.Policy{Sharing: policy.Sharing{
		Mode: policy.Groups, PoolTTL: policy.Duration(ttl), Groups: []string{"0", "1"},
	}}, []string{"ramp"}, (*run).neverMore},
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
		if still := b.try(t, m, seed, fewer); still != "" {
			steps, wrong, i = fewer, still, 0
		} else {
			i++
		}
	}
	return steps, wrong
}

// try runs a sequence, and returns how it breaks the promise; "" if it does not.
func (b Backend) try(t *testing.T, m mode, seed uint64, steps []step) (wrong string) {
	once := func(t *testing.T) {
		r := b.start(t, m, seed)
		for _, s := range steps {
			r.do(s)
			time.Sleep(s.pause)
		}
		r.recover()
		r.end()
		if wrong = r.right(); wrong == "" {
			wrong = r.stuck
		}
	}
	if b.RealTime {
		once(t)
	} else {
		synctest.Test(t, once)
	}
	return wrong
}
