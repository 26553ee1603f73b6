package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
)

// A watched store counts how often each record is read, and can fail.
type watched struct {
	*memory.Store
	mu    sync.Mutex
	down  error
	reads []map[string]int // by call
}

func (w *watched) PublishedBy(ctx context.Context, cluster string, names []string) ([][]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	read := map[string]int{}
	for _, name := range names {
		read[name]++
	}
	w.reads = append(w.reads, read)
	if w.down != nil {
		return nil, w.down
	}
	return w.Store.PublishedBy(ctx, cluster, names)
}

func (w *watched) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = err
}

// lately returns the last calls.
func (w *watched) lately(calls int) []map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads[len(w.reads)-calls:]
}

// watch runs a Reader in virtual time over replicas that publish one topic each, of 100.
func watch(t *testing.T, replicas int, f func(*watched, *cluster.Reader), options ...func(*cluster.Reader)) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: memory.New()}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				for i := range replicas {
					text, _ := json.Marshal(dispatch.Stats{
						Replica: fmt.Sprintf("r%04d", i), Time: 1000 * n,
						Subscriptions: []dispatch.SubscriptionStats{used(fmt.Sprintf("kafka://public/default/t%03d", i%100), "s", 10*n)},
					})
					assert.NoError(t, w.Publish(ctx, "c", fmt.Sprintf("r%04d", i), text, 3*time.Second))
				}
				time.Sleep(time.Second)
			}
		})
		time.Sleep(time.Second / 2)
		r := cluster.NewReader(w, "c", time.Second)
		for _, option := range options {
			option(r)
		}
		done.Go(func() { r.Run(ctx) })
		f(w, r)
		cancel()
		done.Wait()
	})
}

// TestReaderOfMany: records of what is on view are read each second, the others within ten.
func TestReaderOfMany(t *testing.T) {
	watch(t, 1000, func(w *watched, r *cluster.Reader) {
		time.Sleep(100 * time.Millisecond)
		assert.Len(t, w.lately(1)[0], 1000, "at first, nothing is known")
		time.Sleep(20 * time.Second)
		read := map[string]int{}
		for _, call := range w.lately(10) {
			assert.LessOrEqual(t, len(call), 500)
			for name, n := range call {
				read[name] += n
			}
		}
		assert.Len(t, read, 1000)

		for range 10 {
			row, _, ok := r.Topic("kafka://public/default/t042")
			assert.True(t, ok)
			assert.Equal(t, 10, row.Replicas)
			time.Sleep(time.Second)
		}
		for _, call := range w.lately(9) {
			assert.LessOrEqual(t, len(call), 510)
			for i := range 10 {
				assert.Equal(t, 1, call[fmt.Sprintf("r%04d", 42+100*i)])
			}
		}
		row, _, _ := r.Topic("kafka://public/default/t042")
		assert.InDelta(t, 100, float64(row.Rate), 1e-6)
		o, status := r.Overview(cluster.Query{Size: 20, Sort: "topic"})
		assert.Equal(t, 100, o.Totals.Topics)
		assert.Equal(t, 1000, o.Totals.Replicas)
		assert.Len(t, o.Rows, 20)
		assert.Zero(t, status)
		time.Sleep(10 * time.Second)
		assert.LessOrEqual(t, len(w.lately(1)[0]), 500, "nothing is on view any more")
	})
}

// TestViewsInTurn: if more is on view than one read should have, each is read in turn, also if its
// record stays the same, and a topic that is opened by itself comes first.
func TestViewsInTurn(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: memory.New()}
		name := func(i int) string { return fmt.Sprintf("r%04d", i) }
		for i := range 1000 { // of which each other one has a topic that is on view
			subs := []dispatch.SubscriptionStats{used(fmt.Sprintf("kafka://public/default/view%02d", i/20), "s", 1)}
			if i%2 == 1 {
				subs = nil
			}
			for j := len(subs); j < 100; j++ {
				subs = append(subs, used(fmt.Sprintf("kafka://public/default/other%d-%02d", i%10, j), "s", 1))
			}
			text, err := json.Marshal(dispatch.Stats{Replica: name(i), Time: 1000, Subscriptions: subs})
			assert.NoError(t, err)
			assert.NoError(t, w.Publish(t.Context(), "c", name(i), text, time.Hour))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		r := cluster.NewReader(w, "c", time.Second)
		done.Go(func() { r.Run(ctx) })
		time.Sleep(time.Second / 2)
		last := map[string]int{}
		for second := range 11 {
			o, _ := r.Overview(cluster.Query{Size: 100, Filter: "view"})
			assert.Len(t, o.Rows, 50)
			_, _, ok := r.Topic("kafka://public/default/view07")
			assert.True(t, ok)
			time.Sleep(time.Second)
			call := w.lately(1)[0]
			assert.LessOrEqual(t, len(call), 200)
			for name := range call {
				last[name] = second
			}
			for i := 0; i < 1000 && second >= 6; i += 2 {
				assert.GreaterOrEqual(t, last[name(i)], second-6, name(i))
			}
			for i := 140; i < 160; i += 2 {
				assert.Equal(t, 1, call[name(i)], "it is opened")
			}
		}
		cancel()
		done.Wait()
	})
}

// TestReaderWithoutStore: while the permit store cannot be read, the last values stay, with the
// reason and since when, and no points are added.
func TestReaderWithoutStore(t *testing.T) {
	watch(t, 2, func(w *watched, r *cluster.Reader) {
		_, status := cluster.NewReader(w, "c", time.Second).Overview(cluster.Query{Size: 9})
		assert.Equal(t, cluster.Status{Unread: true}, status)
		time.Sleep(10500 * time.Millisecond)
		const topic = "kafka://public/default/t000"
		assert.Len(t, r.Points(topic, 0).Times, 1)
		time.Sleep(time.Minute)
		before := r.Points(topic, 0).Times
		assert.Len(t, before, 60, "a point after ten seconds, and then each second")
		w.fail(errors.New("connection refused"))
		down := time.Now()
		time.Sleep(time.Minute)
		o, status := r.Overview(cluster.Query{Size: 9})
		assert.Equal(t, "connection refused", status.Error)
		assert.WithinDuration(t, down, status.Since, time.Second)
		assert.Len(t, o.Rows, 2)
		assert.Equal(t, 1, o.Rows[0].Replicas)
		assert.EqualValues(t, 10, o.Rows[0].Rate)
		assert.Equal(t, before, r.Points(topic, 0).Times)
		w.fail(nil)
		time.Sleep(2 * time.Second)
		limits := r.Points(topic, before[len(before)-1]).Limit
		assert.True(t, math.IsNaN(float64(limits[0])), "what was between is unknown")
		assert.EqualValues(t, 100, limits[len(limits)-1])
		_, status = r.Overview(cluster.Query{Size: 9})
		assert.Zero(t, status)
		assert.NoError(t, w.Publish(t.Context(), "c", "odd", []byte(`{"waitTimes`), time.Minute))
		time.Sleep(2 * time.Second)
		o, status = r.Overview(cluster.Query{Size: 9})
		assert.Contains(t, status.Unreadable, "the status record of odd")
		assert.Len(t, o.Rows, 2)
	})
}

// TestPoliciesUnreachable: while the policy store does not answer, the status says since when, and
// all else goes on.
func TestPoliciesUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: memory.New()}
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var down error
		hangs := false
		set := func(err error, hang bool) {
			mu.Lock()
			defer mu.Unlock()
			down, hangs = err, hang
		}
		r := cluster.NewReader(w, "c", time.Second)
		r.AskPolicies(func(ctx context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			return down
		})
		var done sync.WaitGroup
		done.Go(func() { r.Run(ctx) })
		time.Sleep(10500 * time.Millisecond)
		assert.Zero(t, r.Status())
		set(errors.New("connection refused"), false)
		began := time.Now()
		for range 30 {
			time.Sleep(2 * time.Second)
			status := r.Status()
			assert.Equal(t, "connection refused", status.Policies.Error)
			assert.WithinDuration(t, began, status.Policies.Since, 2*time.Second)
			assert.Empty(t, status.Error, "the permit store can be read")
		}
		w.fail(errors.New("out of memory"))
		time.Sleep(2 * time.Second)
		status := r.Status()
		assert.Equal(t, "out of memory", status.Error)
		assert.Equal(t, "connection refused", status.Policies.Error)
		w.fail(nil)
		set(nil, false)
		time.Sleep(3 * time.Second)
		assert.Zero(t, r.Status())
		set(nil, true)
		began = time.Now()
		time.Sleep(5 * time.Second)
		assert.Equal(t, context.DeadlineExceeded.Error(), r.Status().Policies.Error, "it does not answer")
		assert.WithinDuration(t, began, r.Status().Policies.Since, 2*time.Second)
		cancel()
		done.Wait()
	})
}

// readMany runs a Reader in virtual time over 20 replicas that publish 100 topics each.
func readMany(t *testing.T, every time.Duration, f func(*cluster.Reader), options ...func(*cluster.Reader)) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: memory.New()}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				for i := range 20 {
					s := dispatch.Stats{Replica: fmt.Sprintf("r%02d", i), Time: 1000 * n}
					for j := range 100 {
						s.Subscriptions = append(s.Subscriptions, used(fmt.Sprintf("kafka://public/default/t%02d-%02d", i, j), "s", 10*n))
					}
					text, err := json.Marshal(s)
					assert.NoError(t, err)
					assert.NoError(t, w.Publish(ctx, "c", s.Replica, text, 3*time.Second))
				}
				time.Sleep(time.Second)
			}
		})
		time.Sleep(time.Second / 4) // no read is in an instant in which records are published
		r := cluster.NewReader(w, "c", every)
		for _, option := range options {
			option(r)
		}
		done.Go(func() { r.Run(ctx) })
		f(r)
		cancel()
		done.Wait()
	})
}

// TestReaderThatReadsRarely: the points of what is not on view are known, too, where there are so
// many topics that each has a new row at each tenth read only.
func TestReaderThatReadsRarely(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	readMany(t, 2500*time.Millisecond, func(r *cluster.Reader) {
		time.Sleep(5 * time.Minute)
		limits := r.Points("kafka://public/default/t07-77", 0).Limit
		assert.NotEmpty(t, limits)
		assert.NotContains(t, fmt.Sprint(limits[1:]), "NaN")
	})
}

// TestReadAll: with it, the rates of all topics are known after two reads.
func TestReadAll(t *testing.T) {
	known := func(options ...func(*cluster.Reader)) (n int) {
		readMany(t, time.Second, func(r *cluster.Reader) {
			time.Sleep(1200 * time.Millisecond)
			o, _ := r.Overview(cluster.Query{Size: 2000})
			for _, row := range o.Rows {
				if row.Rate == 10 {
					n++
				}
			}
		}, options...)
		return n
	}
	assert.Equal(t, 2000, known((*cluster.Reader).ReadAll))
	assert.Less(t, known(), 2000)
	watch(t, 1000, func(w *watched, _ *cluster.Reader) {
		time.Sleep(20 * time.Second)
		assert.Len(t, w.lately(1)[0], 1000)
	}, (*cluster.Reader).ReadAll)
}

// TestUnreadableRecord: a replica whose record cannot be read any more is stale until it can, and
// the reader says so all the time.
func TestUnreadableRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const topic = "kafka://public/default/t"
		w := &watched{Store: memory.New()}
		ctx, cancel := context.WithCancel(t.Context())
		publish := func(replica string, text []byte) {
			assert.NoError(t, w.Publish(ctx, "c", replica, text, time.Hour))
		}
		good := func(n int64) []byte {
			text, err := json.Marshal(dispatch.Stats{
				Replica: "r", Time: 1000 * n, Subscriptions: []dispatch.SubscriptionStats{used(topic, "s", 10*n)},
			})
			assert.NoError(t, err)
			return text
		}
		publish("r", good(1))
		for n := range 30 {
			publish(fmt.Sprintf("other%02d", n), []byte(`{}`))
		}
		r := cluster.NewReader(w, "c", time.Second)
		var done sync.WaitGroup
		done.Go(func() { r.Run(ctx) })
		// expect looks for some seconds, in the last of which the replica is stale or not.
		expect := func(seconds int, stale bool, unreadable string) {
			t.Helper()
			for n := range seconds {
				time.Sleep(time.Second)
				row, status, ok := r.Topic(topic)
				assert.True(t, ok)
				assert.Contains(t, status.Unreadable, unreadable)
				if n == seconds-1 {
					assert.Equal(t, stale, row.Condition == cluster.Stale)
					o, _ := r.Overview(cluster.Query{})
					assert.Equal(t, 1, o.Totals.Topics)
				}
			}
		}
		time.Sleep(time.Second / 2)
		expect(20, false, "the status record of other00, and those of 29 more replicas: replica: missing")
		publish("r", []byte("no JSON"))
		expect(3, true, "and those of")
		expect(20, true, "and those of 30 more replicas: ")
		publish("r", good(60))
		expect(3, false, "and those of 29 more replicas: ")
		for n := range 30 {
			name := fmt.Sprintf("other%02d", n)
			publish(name, fmt.Appendf(nil, `{"replica":%q}`, name))
		}
		expect(11, false, "")
		assert.Empty(t, r.Status().Unreadable)
		cancel()
		done.Wait()
	})
}
