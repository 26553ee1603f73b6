// Package scale runs many replicas on one Redis: each has a Limiter of its own, with connections of
// its own.
package scale

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

const childEnv = "THROTTLE_TEST_SCALE"

// A job is what one process does: it runs replicas, each of which has consumers without end for
// each limit and subscription.
type job struct {
	Permits       string
	Cluster       string
	First, N      int // its replicas
	Rates         []int64
	Subscriptions int // of each topic
	Sharing       policy.Sharing
	Start         time.Time     // when the consumers of the first replica begin
	Each          time.Duration // by which those of the next one begin later
	From, To      time.Time     // the measurement
	Leave         int           // permits of each limit after which the process ends; 0: it ends at To
}

// A report is what a process has seen.
type report struct {
	Grants   [][]window.Event // by limit, in the order of their time since Start
	Requests int64            // to the permit store, during the measurement
	CPU      time.Duration    // of the process, during the measurement
	Heap     float64          // bytes that the replicas have on the heap
}

func TestMain(m *testing.M) {
	text := os.Getenv(childEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var j job
	if err := errors.Join(json.Unmarshal([]byte(text), &j), j.run()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func topicOf(limit int) string {
	return fmt.Sprintf("persistent://public/default/topic-%06d", limit)
}

func (j job) policies() (dispatch.PolicySource, error) {
	entries := make([]policy.Entry, len(j.Rates))
	for i, rate := range j.Rates {
		topic, err := policy.ParseTopic(topicOf(i))
		if err != nil {
			return nil, err
		}
		entries[i] = policy.Entry{Scope: policy.TopicScope(topic), Settings: policy.Policy{
			MessageRate: policy.PerSecond(rate), Sharing: j.Sharing, OnOutage: policy.OutageStop,
		}}
	}
	set, err := policy.NewSet(entries)
	source := new(permitstest.Policies)
	source.Set(set)
	return source, err
}

// run runs in the child process.
func (j job) run() error {
	source, err := j.policies()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(context.Background(), j.To.Add(200*time.Millisecond))
	defer cancel()
	var (
		r         = report{Grants: make([][]window.Event, len(j.Rates))}
		locks     = make([]sync.Mutex, len(j.Rates))
		limiters  []*dispatch.Limiter
		consumers sync.WaitGroup
		short     atomic.Int64 // limits that have not granted Leave permits
	)
	short.Store(int64(len(j.Rates)))
	before := heap()
	for i := range j.N {
		store, err := throttle.OpenPermits(j.Permits)
		if err != nil {
			return err
		}
		group := "eu"
		if (j.First+i)%2 == 1 {
			group = "us"
		}
		lim, err := dispatch.Open(ctx, dispatch.Config{
			Policies: source, Permits: store, Cluster: j.Cluster, Group: group, OnClose: store.Close,
			Replica: fmt.Sprintf("replica-%06d", j.First+i),
		})
		if err != nil {
			return err
		}
		limiters = append(limiters, lim)
		for limit := range j.Rates {
			for s := range j.Subscriptions {
				sub, err := lim.Subscription(topicOf(limit), fmt.Sprintf("group-%02d", s))
				if err != nil {
					return err
				}
				consumers.Go(func() {
					time.Sleep(time.Until(j.Start.Add(time.Duration(j.First+i) * j.Each)))
					for {
						g, err := sub.Acquire(ctx, 1)
						if err != nil {
							return
						}
						locks[limit].Lock()
						at := time.Since(j.Start)
						r.Grants[limit] = append(r.Grants[limit], window.Event{At: at, N: g.N(), Source: j.First + i})
						enough := len(r.Grants[limit]) == j.Leave // one permit each
						locks[limit].Unlock()
						if enough && short.Add(-1) == 0 {
							cancel()
						}
					}
				})
			}
		}
	}
	requests := func() (n int64) {
		for _, l := range limiters {
			n += l.Stats().Permits.Requests
		}
		return n
	}
	time.Sleep(time.Until(j.From))
	n, used := requests(), cpu()
	select {
	case <-time.After(time.Until(j.To)):
	case <-ctx.Done():
	}
	r.CPU, r.Requests = cpu()-used, requests()-n
	kept := 0 // the test's own
	for limit := range r.Grants {
		locks[limit].Lock()
		kept += cap(r.Grants[limit]) * int(unsafe.Sizeof(window.Event{}))
		locks[limit].Unlock()
	}
	r.Heap = heap() - before - float64(kept)
	consumers.Wait()
	for _, l := range limiters {
		if err := l.Close(); err != nil {
			return err
		}
	}
	return gob.NewEncoder(os.Stdout).Encode(r)
}

func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) // without stacks: the runtime shrinks those now and then
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot happen
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A fleet is a run of replicas.
type fleet struct {
	job
	processes int
	replicas  int
	settle    time.Duration // from the start of the first consumers to that of the measurement
	measure   time.Duration
	patient   bool // its permit store has a time-out of 10 s
}

// A result is what a fleet did.
type result struct {
	report          // of all processes; Heap and CPU are summed
	seconds float64 // of the measurement
	redis   usage   // during it
}

func (f fleet) run(t testing.TB) result {
	t.Helper()
	server := services.RedisServer(t, "--maxclients", "15000")
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer func() { require.NoError(t, client.Close()) }()
	empty := usageOf(t, client)
	j := f.job
	j.Permits, j.Cluster = server.URL, "standalone"
	if f.patient {
		j.Permits = services.Patient(j.Permits)
	}
	j.Subscriptions = max(1, j.Subscriptions)
	ready := 2*time.Second + time.Duration(f.replicas*len(j.Rates)*j.Subscriptions)*300*time.Microsecond
	j.Start = time.Now().Add(ready)
	j.From = j.Start.Add(f.settle)
	j.To = j.From.Add(f.measure)
	outputs := make([]bytes.Buffer, f.processes)
	var processes sync.WaitGroup
	for i := range f.processes {
		j.First = i * f.replicas / f.processes
		j.N = (i+1)*f.replicas/f.processes - j.First
		text, err := json.Marshal(j)
		require.NoError(t, err)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+string(text))
		cmd.Stdout, cmd.Stderr = &outputs[i], os.Stderr
		processes.Go(func() {
			if err := cmd.Run(); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	defer processes.Wait()
	time.Sleep(time.Until(j.From))
	before := usageOf(t, client)
	if j.Leave > 0 {
		processes.Wait()
	} else {
		time.Sleep(time.Until(j.To))
	}
	after := usageOf(t, client)
	r := result{seconds: f.measure.Seconds(), redis: after.since(before)}
	r.redis.memory -= empty.memory
	r.redis.connections -= empty.connections
	processes.Wait()
	r.Grants = make([][]window.Event, len(j.Rates))
	for i := range outputs {
		var one report
		require.NoError(t, gob.NewDecoder(&outputs[i]).Decode(&one), "process %d", i)
		r.Requests += one.Requests
		r.CPU += one.CPU
		r.Heap += one.Heap
		for limit, grants := range one.Grants {
			r.Grants[limit] = append(r.Grants[limit], grants...)
		}
	}
	for _, grants := range r.Grants {
		slices.SortFunc(grants, func(a, b window.Event) int { return int(a.At - b.At) })
	}
	return r
}
