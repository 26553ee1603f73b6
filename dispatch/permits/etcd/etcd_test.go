package etcdpermits_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	etcdpermits "github.com/dispatchthrottle/throttle/dispatch/permits/etcd"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

var _ dispatch.PermitStore = (*etcdpermits.Store)(nil)

// open opens a store whose calls may take 10 s, since the machine may be busy.
func open(t testing.TB, endpoint string) *etcdpermits.Store {
	t.Helper()
	return openTimed(t, endpoint, 10*time.Second)
}

// openTimed opens a store with a time-out; 0 is the usual one.
func openTimed(t testing.TB, endpoint string, timeout time.Duration) *etcdpermits.Store {
	t.Helper()
	l := etcdpermits.Open(clientv3.Config{Endpoints: []string{endpoint}}, "test", timeout)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func request(rate float64) schedule.Request {
	return schedule.Request{
		Subscription: "group", Weight: 1, Demand: 1e9, Want: 1, Round: 0.1, Rate: rate, Rev: schedule.Revision{Number: 1},
		Nonce: 7,
	}
}

func allocation(key string) *permits.Request {
	return &permits.Request{Key: key, Allocate: &permits.Allocate{Request: request(10)}}
}

// Processes that allocate the same limit at the same time lose no allocation, and none is made
// twice.
func TestNothingIsLostInARace(t *testing.T) {
	e := services.Etcd(t)
	const stores, each = 8, 50
	var wg sync.WaitGroup
	for i := range stores {
		l := openTimed(t, e.Endpoint, time.Minute)
		wg.Go(func() {
			var carry schedule.Carry
			for range each {
				r := request(1000)
				r.Subscription, r.Carry = fmt.Sprint(i%2), carry
				reply, err := permitstest.Allocate(t.Context(), l, "limit", r)
				if err != nil {
					t.Error(err)
					return
				}
				carry = reply.Carry
			}
		})
	}
	wg.Wait()
	l := open(t, e.Endpoint)
	state, now, err := l.State(t.Context(), "limit")
	require.NoError(t, err)
	require.EqualValues(t, stores*each, state.Seq)
	require.GreaterOrEqual(t, state.Tail, 0.999+float64(stores*each)/1000,
		"each allocation moved the tail by its permit")
	require.GreaterOrEqual(t, now, state.Last)
}

// clock reads the clock of a store by an allocation.
func clock(t *testing.T, l *etcdpermits.Store) float64 {
	t.Helper()
	reply, err := permitstest.Allocate(t.Context(), l, fmt.Sprint(time.Now()), request(1000))
	require.NoError(t, err)
	return reply.Now
}

// The clock runs while there is a process, stands still while there is none, and never runs back.
func TestTheClock(t *testing.T) {
	e := services.Etcd(t)
	a := open(t, e.Endpoint)
	last := clock(t, a)
	b := open(t, e.Endpoint)
	for range 5 {
		time.Sleep(20 * time.Millisecond)
		x := clock(t, a)
		require.GreaterOrEqual(t, x, last+0.02)
		last = x
	}
	require.NoError(t, a.Close())
	throttletest.Until(t, "the process that stays has it run on", func() bool { return clock(t, b) > last+0.3 })
	last = clock(t, b)
	require.NoError(t, b.Close())
	require.GreaterOrEqual(t, clock(t, open(t, e.Endpoint)), last)
}

// TestPoisonedClock: whatever is written as the time, the clock runs on, also in a process that
// starts then, and the next time that is published replaces it.
func TestPoisonedClock(t *testing.T) {
	e := services.Etcd(t)
	client := e.Client()
	a := open(t, e.Endpoint)
	last := clock(t, a)
	key := permits.EtcdClock("/test")
	for _, poison := range []string{"1e300", "NaN", "+Inf", "-1e300", "", "%%%"} {
		_, err := client.Put(t.Context(), key, poison)
		require.NoError(t, err)
		b := open(t, e.Endpoint)
		for _, l := range []*etcdpermits.Store{a, b} {
			now := clock(t, l)
			require.GreaterOrEqual(t, now, last, poison)
			require.Less(t, now, 1e6, poison)
			last = now
		}
		throttletest.Until(t, "a time is published again", func() bool {
			got, err := client.Get(t.Context(), key)
			return err == nil && len(got.Kvs) == 1 && string(got.Kvs[0].Value) != poison
		})
		require.NoError(t, b.Close())
	}
}

// TestPoisonedState: a state from years ahead is lost, and does not take the clock of all limits
// with it.
func TestPoisonedState(t *testing.T) {
	e := services.Etcd(t)
	a := open(t, e.Endpoint)
	first, err := permitstest.Allocate(t.Context(), a, "limit", request(10))
	require.NoError(t, err)
	key := permits.EtcdKey("/test", "limit")
	got, err := e.Client().Get(t.Context(), key)
	require.NoError(t, err)
	var stored map[string]any
	require.NoError(t, json.Unmarshal(got.Kvs[0].Value, &stored))
	state := stored["state"].(map[string]any)
	for _, field := range []string{"Last", "Tail"} {
		state[field] = state[field].(float64) + 3*365*86400
	}
	text, err := json.Marshal(stored)
	require.NoError(t, err)
	_, err = e.Client().Put(t.Context(), key, string(text), clientv3.WithLease(clientv3.LeaseID(got.Kvs[0].Lease)))
	require.NoError(t, err)

	b := open(t, e.Endpoint)
	_, now, err := b.State(t.Context(), "limit")
	require.NoError(t, err)
	assert.Less(t, now, 1e6)
	for _, s := range []*etcdpermits.Store{a, b} {
		r := request(10)
		r.Carry = first.Carry
		reply, err := permitstest.Allocate(t.Context(), s, "limit", r)
		require.NoError(t, err)
		assert.Equal(t, s == a, reply.Lost, "the first request heals it")
		assert.Less(t, reply.Now, 1e6)
	}
	assert.Less(t, clock(t, a), 1e6)
	assert.Less(t, clock(t, open(t, e.Endpoint)), 1e6)
}

// TestAccuracyClock: how well the clocks of two processes agree, and how fast they run.
func TestAccuracyClock(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		e := services.Etcd(t)
		a := open(t, e.Endpoint)
		first, began := clock(t, a), time.Now() // the first waits for other processes
		time.Sleep(700 * time.Millisecond)      // nothing is published
		b := open(t, e.Endpoint)
		apart, off := 0.0, 0.0
		for range 5 {
			x, y, z := clock(t, a), clock(t, b), clock(t, a)
			apart = max(apart, math.Abs(y-(x+z)/2))
			off = max(off, math.Abs(time.Since(began).Seconds()-(z-first)))
			time.Sleep(100 * time.Millisecond)
		}
		m.AtMost("clocks of two processes apart, ms", 1000*apart, 50)
		m.AtMost("off the time that has passed, ms", 1000*off, 100)
	})
}

func TestLateCallsChangeNothing(t *testing.T) {
	l := open(t, services.Etcd(t).Endpoint)
	_, err := permitstest.Allocate(t.Context(), l, "limit", request(10))
	require.NoError(t, err)
	before, _, err := l.State(t.Context(), "limit")
	require.NoError(t, err)
	r := request(10)
	r.NotAfter = before.Last / 2
	reply, err := permitstest.Allocate(t.Context(), l, "limit", r)
	require.NoError(t, err)
	require.True(t, reply.Late)
	after, _, err := l.State(t.Context(), "limit")
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestNewerAndDamagedStates(t *testing.T) {
	e := services.Etcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	l := open(t, e.Endpoint)
	put := func(key, text string, opts ...clientv3.OpOption) {
		_, err := client.Put(t.Context(), "/test/permits/"+url.PathEscape(key), text, opts...)
		require.NoError(t, err)
	}
	lease, err := client.Grant(t.Context(), 60)
	require.NoError(t, err)
	put("newer", `{"version":99}`, clientv3.WithLease(lease.ID))
	requests := []*permits.Request{allocation("newer"), allocation("sound")}
	l.Do(t.Context(), requests)
	require.ErrorContains(t, requests[0].Err, "upgrade")
	require.NoError(t, requests[1].Err, "one limit does not stop the others")
	_, _, err = l.State(t.Context(), "newer")
	require.ErrorContains(t, err, "upgrade")
	for i, c := range []struct {
		text string
		opts []clientv3.OpOption
	}{
		{"%%%", nil},
		{`{"version":99}`, nil}, // no version writes a key without a lease
		{`{"version":7000000}`, []clientv3.OpOption{clientv3.WithLease(lease.ID)}},
	} {
		key := fmt.Sprint("damaged", i)
		put(key, c.text, c.opts...)
		_, _, err = l.State(t.Context(), key)
		require.ErrorContains(t, err, "damaged", c.text)
		reply, err := permitstest.Allocate(t.Context(), l, key, request(10))
		require.NoError(t, err, c.text)
		require.True(t, reply.Lost, c.text)
		state, _, err := l.State(t.Context(), key)
		require.NoError(t, err, c.text)
		require.EqualValues(t, 1, state.Seq)
	}
}

// Requests to an etcd that is unavailable end by their timeout, and no allocation is lost.
func TestAway(t *testing.T) {
	e := services.Etcd(t)
	l := openTimed(t, e.Endpoint, 0)
	r := request(1)
	reply, err := permitstest.Allocate(t.Context(), open(t, e.Endpoint), "limit", r)
	require.NoError(t, err)
	throttletest.Until(t, "the store is connected", func() bool {
		_, _, err := l.State(t.Context(), "limit")
		return err == nil
	})
	e.Stop()
	requests := make([]*permits.Request, 100)
	for i := range requests {
		requests[i] = allocation(fmt.Sprint("limit", i))
	}
	l.Do(t.Context(), requests) // returns, after the time-out or before
	for _, r := range requests {
		require.Error(t, r.Err)
	}
	e.Start()
	r.Carry = reply.Carry
	require.Eventually(t, func() bool {
		reply, err = permitstest.Allocate(t.Context(), l, "limit", r)
		return err == nil
	}, throttletest.Patience, 50*time.Millisecond, "gRPC waits for seconds between attempts to connect")
	require.EqualValues(t, 2, reply.Carry.Seq)
}

// TestTurns: a process that allocates all the time does not starve another one, neither on a near
// etcd nor on a far one: it makes few allocations until the other has made one.
func TestTurns(t *testing.T) {
	t.Run("near", func(t *testing.T) { turns(t, 0, 50) })
	t.Run("far", func(t *testing.T) { turns(t, 50*time.Millisecond, 5) })
}

func turns(t *testing.T, latency time.Duration, allocations int) {
	proxy := services.NewProxy(t, services.Etcd(t).Endpoint)
	busy, other := open(t, proxy.Addr), open(t, proxy.Addr)
	carry := map[*etcdpermits.Store]schedule.Carry{}
	allocate := func(l *etcdpermits.Store) error {
		r := request(1000)
		r.Carry = carry[l]
		reply, err := permitstest.Allocate(t.Context(), l, "limit", r)
		carry[l] = reply.Carry
		return err
	}
	require.NoError(t, allocate(busy))
	require.NoError(t, allocate(other))
	proxy.Latency(latency)
	done := make(chan struct{})
	var running sync.WaitGroup
	var made atomic.Int64 // by busy
	running.Go(func() {
		c := carry[busy]
		for {
			select {
			case <-done:
				return
			default:
			}
			r := request(1000)
			r.Carry = c
			reply, err := permitstest.Allocate(t.Context(), busy, "limit", r)
			assert.NoError(t, err)
			c = reply.Carry
			made.Add(1)
		}
	})
	throttletest.Until(t, "it allocates all the time", func() bool { return made.Load() > 0 })
	before := made.Load()
	for range allocations {
		assert.NoError(t, allocate(other))
	}
	assert.LessOrEqual(t, made.Load()-before, int64(5*allocations))
	close(done)
	running.Wait()
}

// TestFarRows: a page of rows is set and read on a far etcd, with a time-out that is long enough
// for one of its transactions and too short for all of them.
func TestFarRows(t *testing.T) {
	proxy := services.NewProxy(t, services.Etcd(t).Endpoint)
	store, ctx, key := openTimed(t, proxy.Addr, 8*time.Second), t.Context(), permits.RatesKey(services.Name(t))
	head := []byte("head")
	require.NoError(t, store.Update(ctx, key, time.Hour, func([]byte, float64) []byte { return head }))
	rows, names := map[string][]byte{}, []string{}
	for i := range permits.RowsPage {
		name := fmt.Sprint("tag:", i)
		rows[name], names = []byte(`{"rate":1,"average":4096}`), append(names, name)
	}
	for _, latency := range []time.Duration{0, 400 * time.Millisecond} {
		proxy.Latency(latency)
		done, err := store.SetRows(ctx, key, head, time.Hour, rows)
		require.NoError(t, err)
		require.True(t, done)
		got, err := store.Rows(ctx, key, names)
		require.NoError(t, err)
		require.Len(t, got, len(names))
		require.Equal(t, rows[names[0]], got[0])
	}
}

func TestStatusRecords(t *testing.T) {
	e := services.Etcd(t)
	a, b := open(t, e.Endpoint), open(t, e.Endpoint)
	require.NoError(t, a.Publish(t.Context(), "eu/1", "a", []byte("1"), time.Hour))
	require.NoError(t, b.Publish(t.Context(), "eu", "c", []byte("3"), time.Hour))
	throttletest.Until(t, "both are there", func() bool {
		require.NoError(t, b.Publish(t.Context(), "eu/1", "b", []byte("2"), 3*time.Second))
		texts, err := a.Published(t.Context(), "eu/1")
		require.NoError(t, err)
		slices.SortFunc(texts, bytes.Compare)
		return string(bytes.Join(texts, nil)) == "12"
	})
	require.NoError(t, a.Publish(t.Context(), "eu/1", "a", []byte("4"), time.Hour))
	throttletest.Until(t, "b is gone", func() bool {
		texts, err := b.Published(t.Context(), "eu/1")
		require.NoError(t, err)
		return len(texts) == 1 && string(texts[0]) == "4"
	})
}

// fourLimiters share a limit of 500/s through etcd, whose stores have this time-out, until each has
// dispatched n messages. It returns when they did, since the start.
func fourLimiters(t *testing.T, timeout time.Duration, n int) (all []window.Event) {
	t.Helper()
	e := services.Etcd(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for range 4 {
		lim, err := dispatch.Open(t.Context(), dispatch.Config{
			Policies: dispatch.Fixed(policy.Policy{MessageRate: policy.PerSecond(500)}),
			Permits:  openTimed(t, e.Endpoint, timeout),
		})
		require.NoError(t, err)
		sub, err := lim.Subscription("kafka://public/default/orders", "group")
		require.NoError(t, err)
		wg.Go(func() {
			for range n {
				if _, err := sub.Acquire(t.Context(), 1); err != nil {
					t.Error(err)
				}
				mu.Lock()
				all = append(all, window.Event{At: time.Since(start), N: 1})
				mu.Unlock()
			}
			assert.NoError(t, lim.Close())
		})
	}
	wg.Wait()
	return all
}

// clocksDiffer is how far the clocks of the Limiters on one etcd may be apart. A schedule that one
// with a slow clock has started is as much earlier for the others.
const clocksDiffer = 10 * time.Millisecond

// Four Limiters that share a limit through etcd keep it.
func TestLimiters(t *testing.T) {
	assert.NoError(t, window.WithinRate(500, 250*time.Millisecond+clocksDiffer, 0, fourLimiters(t, 10*time.Second, 250)))
}

func TestAccuracyLimiters(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		all := fourLimiters(t, 0, 500)
		n := 0
		for _, e := range all {
			if e.At >= time.Second && e.At < 3*time.Second {
				n++
			}
		}
		m.Within("used by four, %", 100*float64(n)/1000, 90, 108)
		m.AtMost("any second, %", 100*float64(window.Max(time.Second, all))/500, 111)
	})
}

// BenchmarkAllocation: allocations a second of one limit, by one process and by eight that
// compete.
func BenchmarkAllocation(b *testing.B) {
	for _, processes := range []int{1, 8} {
		b.Run(fmt.Sprintf("%d_processes/throttle", processes), func(b *testing.B) {
			e := services.Etcd(b)
			stores := make([]*etcdpermits.Store, processes)
			for i := range stores {
				stores[i] = open(b, e.Endpoint)
				_, err := permitstest.Allocate(b.Context(), stores[i], "limit", request(1e6))
				require.NoError(b, err)
			}
			n := 0
			start := time.Now()
			for b.Loop() {
				var wg sync.WaitGroup
				for _, l := range stores {
					wg.Go(func() {
						for range 10 {
							if _, err := permitstest.Allocate(b.Context(), l, "limit", request(1e6)); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
				n += 10 * processes
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(n)/time.Since(start).Seconds(), "allocations/s")
			b.ReportMetric(time.Since(start).Seconds()*1e3/float64(n)*float64(processes), "ms-wait")
		})
	}
}

// TestSchedulesOnEtcd: each sharing mode keeps its promise under random faults, in real time.
func TestSchedulesOnEtcd(t *testing.T) {
	e := services.Etcd(t)
	permitstest.Run(t, permitstest.Backend{RealTime: true, Open: func(t *testing.T) dispatch.PermitStore {
		store := etcdpermits.Open(clientv3.Config{Endpoints: []string{e.Endpoint}}, services.Name(t), 10*time.Second)
		t.Cleanup(func() { assert.NoError(t, store.Close()) })
		return store
	}}, permitstest.Seeds(t, 1, 4))
}

func TestStore(t *testing.T) { permitstest.Check(t, open(t, services.Etcd(t).Endpoint)) }

func TestBacksOff(t *testing.T) { permitstest.BacksOff(t, open(t, services.Etcd(t).Endpoint)) }

// TestConflictsLeaveOneLease: an Update that loses to others a few times grants one lease, not one
// for each attempt.
func TestConflictsLeaveOneLease(t *testing.T) {
	e := services.Etcd(t)
	l := open(t, e.Endpoint)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	const key = "throttle:pool:{a}"
	lost := 0
	err = l.Update(t.Context(), key, time.Minute, func([]byte, float64) []byte {
		if lost < 4 {
			lost++
			_, err := client.Put(t.Context(), permits.EtcdKey("/test", key), "of another")
			require.NoError(t, err)
		}
		return []byte("x")
	})
	require.NoError(t, err)
	require.Equal(t, 4, lost)
	leases, err := client.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases.Leases, 1)
}

// TestLongerTTL: a value lives for the ttl of its last Update, where that is longer than the one
// before.
func TestLongerTTL(t *testing.T) {
	e := services.Etcd(t)
	l := open(t, e.Endpoint)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	const key = "throttle:pool:{a}"
	lease := func(ttl time.Duration) clientv3.LeaseID {
		require.NoError(t, l.Update(t.Context(), key, ttl, func([]byte, float64) []byte { return []byte("x") }))
		got, err := client.Get(t.Context(), permits.EtcdKey("/test", key))
		require.NoError(t, err)
		require.Len(t, got.Kvs, 1)
		id := clientv3.LeaseID(got.Kvs[0].Lease)
		left, err := client.TimeToLive(t.Context(), id)
		require.NoError(t, err)
		require.Greater(t, left.TTL, int64(ttl/time.Second)/2)
		return id
	}
	first := lease(10 * time.Minute)
	require.Equal(t, first, lease(10*time.Minute), "is renewed")
	require.NotEqual(t, first, lease(time.Hour))
}
