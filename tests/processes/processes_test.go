// Package processes tests limits over real processes on a real Redis or etcd.
package processes

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// poolTTL is how long a silent process of a split limit counts.
const poolTTL = 2 * time.Second

const topic = "kafka://public/default/orders"

// warmUp is a topic of its own, where a permit is got at once.
const warmUp = "kafka://public/warm-up/orders"

const childEnv = "THROTTLE_TEST_PROCESS"

// A job describes what one process does.
type job struct {
	Permits      string
	Policies     string // URL of the policy store; "" = Rate and what follows
	Cluster      string
	Subscription string
	Rate         int64
	Period       time.Duration // of Rate; 0 = a second
	Aggregate    int64         // messages a second of the namespace; 0 = any number
	Callers      int           // 0 = one
	Max          int           // permits of one Acquire
	Sharing      policy.SharingMode
	Group        string // worker group, eu or us
	Wait         policy.WaitMode
	MaxReserved  *int64
	Poisson      float64            // > 0: one permit at random times, this many a second
	Weights      map[string]float64 // by subscription
	Reserved     map[string]int64   // messages a second, by subscription
	Start, End   time.Time
	Delay        time.Duration // from Start to joining
	Tell         bool          // prints the number of its permits with each grant
	Leave        int           // ends after that many permits; 0: at End, or with its input
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

// policies returns the policies of the job, which are the same in all processes, and what closes
// them.
func (j job) policies(ctx context.Context) (_ dispatch.PolicySource, end func() error, _ error) {
	if j.Policies == "" {
		source, err := j.fixedPolicies()
		return source, func() error { return nil }, err
	}
	store, err := throttle.OpenPolicies(ctx, j.Policies)
	if err != nil {
		return nil, nil, err
	}
	return configstore.Source(store), store.Close, nil
}

func (j job) fixedPolicies() (dispatch.PolicySource, error) {
	entries := []policy.Entry{{Scope: policy.ClusterScope(), Settings: policy.Policy{
		MessageRate: policy.Rate{Permits: j.Rate, Period: cmp.Or(j.Period, time.Second)}, Sharing: policy.Sharing{
			Mode: j.Sharing, Groups: []string{"eu", "us"}, PoolTTL: policy.Duration(poolTTL),
			Wait: j.Wait, MaxReserved: j.MaxReserved,
		},
	}}}
	if j.Aggregate > 0 {
		entries = append(entries, policy.Entry{
			Scope:    policy.NamespaceScope("public", "", "default"),
			Settings: policy.Policy{MessageRate: policy.PerSecond(j.Aggregate), Aggregate: new(true)},
		})
	}
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
	entries = append(entries, policy.Entry{
		Scope: policy.NamespaceScope("public", "", "warm-up"), Settings: policy.Policy{
			MessageRate: policy.PerSecond(1000), Sharing: policy.Sharing{Mode: policy.Fair},
		},
	})
	set, setErr := policy.NewSet(entries)
	source := new(permitstest.Policies)
	source.Set(set)
	return source, errors.Join(err, setErr)
}

// run runs in the child process. It prints its events at the end.
func (j job) run() error {
	ctx, cancel := context.WithDeadline(context.Background(), j.End)
	defer cancel()
	go fleet.UntilInputEnds(cancel)
	permits, err := throttle.OpenPermits(j.Permits)
	if err != nil {
		return err
	}
	policies, end, err := j.policies(ctx)
	if err != nil {
		return err
	}
	lim, err := dispatch.Open(ctx, dispatch.Config{
		Policies: policies,
		Permits:  permits, Cluster: j.Cluster, Group: j.Group,
		OnClose: func() error { return errors.Join(permits.Close(), end()) },
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
	warm, err := lim.Subscription(warmUp, j.Subscription)
	if err != nil {
		return err
	}
	if _, err = warm.Acquire(ctx, 1); err != nil {
		return err
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
	out := bufio.NewWriter(os.Stdout) // keeps its first error for Flush
	line := func(a ...any) { _, _ = fmt.Fprintln(out, a...) }
	var mu sync.Mutex // guards out, events and got
	var events []event
	got := 0
	add := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
		if got += e.n; j.Leave > 0 && got >= j.Leave {
			cancel()
		}
		if j.Tell {
			line("got", got, 0)
			_ = out.Flush()
		}
	}
	var callers sync.WaitGroup
	for range max(1, j.Callers) {
		callers.Go(func() { j.call(ctx, sub, add) })
	}
	callers.Wait()
	control.Wait()
	requests := lim.Stats().Permits.Requests - before
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

// call gets permits until ctx ends.
func (j job) call(ctx context.Context, sub *dispatch.Subscription, add func(event)) {
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
			return
		}
		now := time.Now()
		g.Done(g.N(), 0)
		add(event{at: now.Sub(j.Start), n: g.N(), wait: now.Sub(asked)})
	}
}

// A running job is done by several processes. Its methods are called by the test's goroutine.
type running struct {
	tb     testing.TB
	jobs   []job
	cmds   []*exec.Cmd
	inputs []io.Closer
	reads  sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	got    []int      // permits of each process, if it tells
	result result
	faults []string
}

// start starts a job in several processes, which begin at the same time. The function edit may
// change the job of each process.
func start(tb testing.TB, permits string, processes int, d time.Duration, base job, edit func(i int, j *job)) *running {
	tb.Helper()
	base.Permits, base.Cluster = permits, fmt.Sprintf("c%d", time.Now().UnixNano())
	base.Start = time.Now().Add(2 * time.Second)
	base.End = base.Start.Add(d)
	if base.Subscription == "" {
		base.Subscription = "group"
	}
	r := &running{tb: tb, got: make([]int, processes)}
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
		in, err := cmd.StdinPipe()
		require.NoError(tb, err)
		out, err := cmd.StdoutPipe()
		require.NoError(tb, err)
		require.NoError(tb, cmd.Start())
		tb.Cleanup(func() { _ = cmd.Process.Kill() }) // fails if it has ended
		r.jobs, r.cmds, r.inputs = append(r.jobs, j), append(r.cmds, cmd), append(r.inputs, in)
		r.reads.Go(func() { r.read(i, out) })
	}
	return r
}

// read takes in what a process prints.
func (r *running) read(i int, out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		r.mu.Lock()
		if err := r.take(i, strings.Fields(lines.Text())); err != nil {
			r.faults = append(r.faults, fmt.Sprintf("process %d: %q: %v", i, lines.Text(), err))
		}
		r.mu.Unlock()
	}
}

func (r *running) take(i int, fields []string) error {
	if len(fields) != 3 {
		return errors.New("not three fields")
	}
	b, errB := strconv.ParseInt(fields[1], 10, 64)
	c, errC := strconv.ParseInt(fields[2], 10, 64)
	switch fields[0] {
	case "got":
		r.got[i] = int(b)
	case "requests":
		r.result.requests += b
	case "late":
		r.result.lateness = append(r.result.lateness, time.Duration(b))
	default:
		at, err := strconv.ParseInt(fields[0], 10, 64)
		r.result.events = append(r.result.events, event{
			at: time.Duration(at), n: int(b), process: i, wait: time.Duration(c),
		})
		return errors.Join(err, errB, errC)
	}
	return errors.Join(errB, errC)
}

// until waits until each of some processes, or each one if none is named, has got n permits more.
func (r *running) until(n int, who ...int) {
	r.tb.Helper()
	if len(who) == 0 {
		for i := range r.cmds {
			who = append(who, i)
		}
	}
	counts := func() (all []int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, i := range who {
			all = append(all, r.got[i])
		}
		return all
	}
	before := counts()
	what := fmt.Sprintf("processes %d have %d more than %d", who, n, before)
	throttletest.Until(r.tb, what, func() bool {
		for k, got := range counts() {
			if got < before[k]+n {
				return false
			}
		}
		return true
	})
}

// signal sends a signal to a process.
func (r *running) signal(i int, s syscall.Signal) {
	r.tb.Helper()
	require.NoError(r.tb, r.cmds[i].Process.Signal(s))
}

// stop ends the processes, and returns what they have done.
func (r *running) stop() result {
	r.tb.Helper()
	for _, in := range r.inputs {
		_ = in.Close() // fails if the process has ended
	}
	return r.wait()
}

// wait waits until the processes end, and returns what they have done.
func (r *running) wait() result {
	r.tb.Helper()
	r.reads.Wait()
	for i, cmd := range r.cmds {
		if err := cmd.Wait(); err != nil && !(r.jobs[i].Kill && err.Error() == "signal: killed") {
			r.tb.Errorf("process %d: %v", i, err)
		}
	}
	require.Empty(r.tb, r.faults)
	slices.SortFunc(r.result.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	require.NotEmpty(r.tb, r.result.events)
	return r.result
}

// run runs a job in several processes for d.
func run(tb testing.TB, permits string, processes int, d time.Duration, base job, edit func(i int, j *job)) result {
	tb.Helper()
	return start(tb, permits, processes, d, base, edit).wait()
}

// neverOver checks that no more was granted since the start than a rate allows, and extra.
func (r result) neverOver(t *testing.T, rate int64, slack time.Duration, extra float64) {
	t.Helper()
	assert.NoError(t, window.WithinRate(float64(rate), slack, extra, r.grants()))
}

func (r result) grants() (all []window.Event) {
	for _, e := range r.events {
		all = append(all, window.Event{At: e.at, N: e.n})
	}
	return all
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
func (r result) window() int { return window.Max(time.Second, r.grants()) }

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

// inTurn checks that no permit was granted before its slot: the slots are d apart, and those of a
// new line begin a while after the start.
func (r result) inTurn(t *testing.T, d time.Duration) {
	t.Helper()
	const begin = time.Duration(schedule.Unconfirmed * float64(time.Second))
	for i, e := range r.events {
		if !assert.GreaterOrEqual(t, e.at, begin+time.Duration(i)*d, "permit %d", i) {
			return
		}
	}
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
