// Package processes tests limits over real processes on a real Redis or etcd.
package processes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
	"github.com/dispatchthrottle/throttle/tests/window"
)

// poolTTL is how long a silent process of a split limit counts.
const poolTTL = 2 * time.Second

const topic = "kafka://public/default/orders"

const childEnv = "THROTTLE_TEST_PROCESS"

// A job describes what one process does.
type job struct {
	Permits      string
	Cluster      string
	Subscription string
	Rate         int64
	Max          int // permits of one Acquire
	Sharing      policy.SharingMode
	Group        string // worker group, eu or us
	Wait         policy.WaitMode
	MaxReserved  *int64
	Poisson      float64            // > 0: one permit at random times, this many a second
	Weights      map[string]float64 // by subscription
	Reserved     map[string]int64   // messages a second, by subscription
	Start, End   time.Time
	Delay        time.Duration // from Start to joining
	Kill         bool          // ends by SIGKILL after printing its events
}

// An event is a grant of n permits to a process.
type event struct {
	at      time.Duration // since the job's Start
	n       int
	process int
	wait    time.Duration
}

// A result has the events of all processes.
type result struct {
	events   []event // by time
	requests int64
	lateness []time.Duration // of a control timer of 2 ms in each process
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		var j job
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			panic(err)
		}
		if err := j.run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// policies returns the policies of the job, which are the same in all processes.
func (j job) policies() (dispatch.PolicySource, error) {
	entries := []policy.Entry{{Scope: policy.ClusterScope(), Settings: policy.Policy{
		MessageRate: policy.PerSecond(j.Rate), Sharing: policy.Sharing{
			Mode: j.Sharing, Groups: []string{"eu", "us"}, PoolTTL: policy.Duration(poolTTL),
			Wait: j.Wait, MaxReserved: j.MaxReserved,
		},
	}}}
	topic, err := policy.ParseTopic(topic)
	for name, weight := range j.Weights {
		entries = append(entries, policy.Entry{
			Scope: policy.SubscriptionScope(topic, name), Settings: policy.Policy{Weight: &weight},
		})
	}
	for name, n := range j.Reserved {
		entries = append(entries, policy.Entry{
			Scope: policy.SubscriptionScope(topic, name), Settings: policy.Policy{Reserved: policy.PerSecond(n)},
		})
	}
	set, setErr := policy.NewSet(entries)
	source := new(throttletest.Policies)
	source.Set(set)
	return source, errors.Join(err, setErr)
}

// run runs in the child process. It prints its events at the end.
func (j job) run() error {
	ctx, cancel := context.WithDeadline(context.Background(), j.End)
	defer cancel()
	permits, err := throttle.OpenPermits(j.Permits)
	if err != nil {
		return err
	}
	policies, err := j.policies()
	if err != nil {
		return err
	}
	lim, err := dispatch.Open(ctx, dispatch.Config{
		Policies: policies,
		Permits:  permits, Cluster: j.Cluster, Group: j.Group, OnClose: permits.Close,
	})
	if err != nil {
		return err
	}
	if j.Delay > 0 {
		time.Sleep(time.Until(j.Start.Add(j.Delay)))
	}
	sub, err := lim.Subscription(topic, j.Subscription)
	if err != nil {
		return err
	}
	// A call for another topic opens the connection before the measurement.
	warm, err := lim.Subscription("kafka://public/default/warm-up", j.Subscription)
	if err != nil {
		return err
	}
	if j.Sharing != policy.Split { // a split pool must agree on its size first
		if _, err = warm.Acquire(ctx, 1); err != nil {
			return err
		}
	}
	if err = warm.Close(); err != nil {
		return err
	}
	before := lim.Stats().Permits.Requests
	time.Sleep(time.Until(j.Start))

	var late []time.Duration
	var control sync.WaitGroup
	control.Go(func() {
		for ctx.Err() == nil {
			at := time.Now().Add(2 * time.Millisecond)
			time.Sleep(time.Until(at))
			late = append(late, time.Since(at))
		}
	})
	var events []event
	next := time.Now()
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for ctx.Err() == nil {
		asked := time.Now()
		if j.Poisson > 0 {
			next = next.Add(time.Duration(rng.ExpFloat64() / j.Poisson * float64(time.Second)))
			select {
			case <-time.After(time.Until(next)):
			case <-ctx.Done():
			}
			asked = time.Now()
		}
		g, err := sub.Acquire(ctx, max(1, j.Max))
		if err != nil {
			break
		}
		now := time.Now()
		events = append(events, event{at: now.Sub(j.Start), n: g.N(), wait: now.Sub(asked)})
		g.Done(g.N(), 0)
	}
	control.Wait()
	requests := lim.Stats().Permits.Requests - before
	out := bufio.NewWriter(os.Stdout) // keeps its first error for Flush
	line := func(a ...any) { _, _ = fmt.Fprintln(out, a...) }
	line("requests", requests, 0)
	for _, e := range events {
		line(e.at.Nanoseconds(), e.n, e.wait.Nanoseconds())
	}
	for _, d := range late {
		line("late", d.Nanoseconds(), 0)
	}
	if j.Kill {
		return errors.Join(out.Flush(), syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	if err := lim.Close(); err != nil {
		return err
	}
	return out.Flush()
}

// run runs a job in several processes at the same time, for d. The function edit may change the job
// of each process.
func run(tb testing.TB, permits string, processes int, d time.Duration, base job, edit func(i int, j *job)) result {
	tb.Helper()
	return runWatched(tb, permits, processes, d, base, edit, nil)
}

// runWatched is like run, and calls watch for each process, which may disturb it.
func runWatched(
	tb testing.TB, permits string, processes int, d time.Duration, base job, edit func(i int, j *job),
	watch func(i int, cmd *exec.Cmd, start time.Time),
) result {
	tb.Helper()
	base.Permits, base.Cluster = permits, fmt.Sprintf("c%d", time.Now().UnixNano())
	base.Start = time.Now().Add(2 * time.Second)
	base.End = base.Start.Add(d)
	if base.Subscription == "" {
		base.Subscription = "group"
	}
	outputs := make([][]byte, processes)
	var wg sync.WaitGroup
	for i := range processes {
		j := base
		if edit != nil {
			edit(i, &j)
		}
		text, err := json.Marshal(j)
		require.NoError(tb, err)
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), childEnv+"="+string(text), "GOMAXPROCS=2")
		cmd.Stderr = os.Stderr
		wg.Go(func() {
			var out bytes.Buffer
			cmd.Stdout = &out
			err := cmd.Start()
			if err == nil && watch != nil {
				watch(i, cmd, j.Start)
			}
			if err == nil {
				err = cmd.Wait()
			}
			if err != nil && !(j.Kill && err.Error() == "signal: killed") {
				tb.Errorf("process %d: %v", i, err)
			}
			outputs[i] = out.Bytes()
		})
	}
	wg.Wait()
	var r result
	for i, out := range outputs {
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			number := func(k int) int64 {
				n, err := strconv.ParseInt(fields[k], 10, 64)
				if err != nil { // calling require for each number would take too long
					require.NoError(tb, err, line)
				}
				return n
			}
			switch {
			case len(fields) != 3:
				require.Fail(tb, "not three fields", line)
			case fields[0] == "requests":
				r.requests += number(1)
			case fields[0] == "late":
				r.lateness = append(r.lateness, time.Duration(number(1)))
			default:
				r.events = append(r.events, event{
					at: time.Duration(number(0)), n: int(number(1)), process: i, wait: time.Duration(number(2)),
				})
			}
		}
	}
	slices.SortFunc(r.events, func(a, b event) int { return int(a.at - b.at) })
	require.NotEmpty(tb, r.events)
	return r
}

// count returns the permits of [from, to) of one process, or of all if process is negative.
func (r result) count(process int, from, to time.Duration) (n int) {
	for _, e := range r.events {
		if e.at >= from && e.at < to && (process < 0 || e.process == process) {
			n += e.n
		}
	}
	return n
}

// window returns the highest number of permits in any second.
func (r result) window() int {
	var all []window.Event
	for _, e := range r.events {
		all = append(all, window.Event{At: e.at, N: e.n})
	}
	return window.Max(time.Second, all)
}

// gaps returns the shortest time between two permits of [from, to), and their number.
func (r result) gaps(from, to time.Duration) (shortest time.Duration, n int) {
	shortest, last := time.Hour, time.Duration(-1)
	for _, e := range r.events {
		if e.at < from || e.at >= to {
			continue
		}
		if last >= 0 {
			shortest = min(shortest, e.at-last)
		}
		last, n = e.at, n+e.n
	}
	return shortest, n
}

// apart checks that permits were at least d apart, less the delay of the machine's timers, and
// loosely that they were at least d less 20 ms apart.
func (r result) apart(t, loose assert.TestingT, d time.Duration) {
	const usual = 20 * time.Millisecond
	shortest, _ := r.gaps(0, time.Hour)
	late := slices.Max(r.lateness)
	assert.GreaterOrEqual(t, shortest, d-max(usual, late), "timers were late by %v", late)
	assert.GreaterOrEqual(loose, shortest, d-usual)
}

func (r result) requestsPerMessage() float64 {
	return float64(r.requests) / float64(max(1, r.count(-1, 0, time.Hour)))
}

func percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(len(d)-1, int(float64(len(d))*p))]
}

func (r result) waits(process int) (w []time.Duration) {
	for _, e := range r.events {
		if e.process == process {
			w = append(w, e.wait)
		}
	}
	return w
}
