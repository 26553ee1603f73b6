package numaflowthrottle_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A user is a user-defined source with numbered messages. It waits for TimeOut if none is left.
type user struct {
	sourcer.Sourcer

	mu       sync.Mutex
	left     int
	next     int
	asked    []uint64
	acked    []string
	nacked   []string
	during   func() // of a Read
	tooMany  int    // more than it is asked for
	padding  int    // bytes of headers
	patience []time.Duration
}

// has changes how many messages there are, and what happens during a Read.
func (u *user) has(left int, during func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.left, u.during = left, during
}

func (u *user) Read(ctx context.Context, request sourcer.ReadRequest, out chan<- sourcer.Message) {
	u.mu.Lock()
	u.asked = append(u.asked, request.Count())
	u.patience = append(u.patience, request.TimeOut())
	n := min(int(request.Count())+u.tooMany, u.left)
	u.left -= n
	first := u.next
	u.next += n
	during, padding := u.during, u.padding
	u.mu.Unlock()
	if during != nil {
		during()
	}
	for i := range n {
		out <- message(first+i, padding)
	}
	if n == 0 {
		select {
		case <-time.After(request.TimeOut()):
		case <-ctx.Done():
		}
	}
}

func message(i, padding int) sourcer.Message {
	m := sourcer.NewMessage(fmt.Append(nil, i), sourcer.NewOffset(fmt.Append(nil, i), 0), time.Time{})
	return m.WithHeaders(map[string]string{"padding": strings.Repeat("x", padding)})
}

func (u *user) Ack(_ context.Context, r sourcer.AckRequest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range r.Offsets() {
		u.acked = append(u.acked, string(o.Value()))
	}
}

func (u *user) Nack(_ context.Context, r sourcer.NackRequest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range r.Offsets() {
		u.nacked = append(u.nacked, string(o.Offset.Value()))
	}
}

// refused is what has been nacked.
func (u *user) refused() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.nacked)
}

func (u *user) Pending(context.Context) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return int64(u.left)
}

type readRequest struct {
	count   uint64
	timeout time.Duration
}

func (r readRequest) Count() uint64          { return r.count }
func (r readRequest) TimeOut() time.Duration { return r.timeout }

// read is one Read of a data plane; it tells what came and how long it took.
func read(
	ctx context.Context, s sourcer.Sourcer, count uint64, timeout time.Duration,
) (got []string, took time.Duration) {
	out := make(chan sourcer.Message)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range out {
			got = append(got, string(m.Value()))
		}
	}()
	begin := time.Now()
	defer func() { // also if the user's panics
		close(out)
		<-done
		took = time.Since(begin)
	}()
	s.Read(ctx, readRequest{count, timeout}, out)
	return
}

func numbers(from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

type offsets []sourcer.Offset

func (o offsets) Offsets() []sourcer.Offset { return o }

func offsetsOf(values []string) (all offsets) {
	for _, v := range values {
		all = append(all, sourcer.NewOffset([]byte(v), 0))
	}
	return all
}

func source(t *testing.T, u *user, p policy.Policy, opts ...numaflowthrottle.Option) sourcer.Sourcer {
	t.Helper()
	opts = append([]numaflowthrottle.Option{numaflowthrottle.WithTopic(topic), quiet}, opts...)
	s, err := numaflowthrottle.Source(u, open(t, p), opts...)
	require.NoError(t, err)
	return s
}

// TestSourceFillsItsBatch: a Read continues until TimeOut, so that a limit under the batch's size
// is reached.
func TestSourceFillsItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10_000}
		s := source(t, u, throttletest.PerSecond(100))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin, total := time.Now(), 0
		for range 10 {
			got, took := read(ctx, s, 500, time.Second)
			assert.LessOrEqual(t, took, time.Second)
			require.Equal(t, numbers(total, total+len(got)), got)
			total += len(got)
		}
		assert.InDelta(t, 100*time.Since(begin).Seconds(), total, 15)
		for _, patience := range u.patience {
			assert.LessOrEqual(t, patience, time.Second)
		}
	})
}

// TestSourceFullBatch: a batch that is full is not kept waiting.
func TestSourceFullBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10_000}
		s := source(t, u, throttletest.PerSecond(1000))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin, total := time.Now(), 0
		for range 30 {
			got, took := read(ctx, s, 100, time.Second)
			assert.Len(t, got, 100)
			assert.Less(t, took, 300*time.Millisecond)
			total += len(got)
		}
		assert.InDelta(t, 1000*time.Since(begin).Seconds(), total, 150)
	})
}

// TestSourceUnlimited: nothing limited is one Read of the user's, for all.
func TestSourceUnlimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10_000}
		s := source(t, u, policy.Policy{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, took := read(ctx, s, 500, time.Second)
		assert.Equal(t, numbers(0, 500), got)
		assert.Zero(t, took)
		assert.Equal(t, []uint64{500}, u.asked)
	})
}

// TestSourceGivesBack: permits for messages that the user's source did not have serve the next
// Read.
func TestSourceGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{}
		p := policy.Policy{MessageRate: rate(t, "10/1h"), Burst: new(int64(10)),
			CaughtUp: policy.CaughtUp{Throttle: new(true)}}
		s := source(t, u, p)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 20 { // twenty times ten permits would be too many
			got, took := read(ctx, s, 10, time.Second)
			assert.Empty(t, got)
			assert.LessOrEqual(t, took, time.Second)
		}
		u.has(10, nil)
		got, _ := read(ctx, s, 10, time.Second)
		assert.NotEmpty(t, got)
	})
}

func rate(t *testing.T, text string) policy.Rate {
	t.Helper()
	r, err := policy.ParseRate(text)
	require.NoError(t, err)
	return r
}

// TestSourceOfTooMany: messages beyond those requested from the user's source are delivered and
// charged.
func TestSourceOfTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 1000, tooMany: 7}
		s := source(t, u, throttletest.PerSecond(100))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin, total := time.Now(), 0
		for range 5 {
			got, _ := read(ctx, s, 50, time.Second)
			total += len(got)
		}
		assert.Less(t, float64(total), 100*time.Since(begin).Seconds()+30)
	})
}

// TestSourcePanic: a panic of the user's code continues, and its permits go back.
func TestSourcePanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 1000, during: func() { panic("the user's") }}
		p := throttletest.PerSecond(1000)
		p.MaxInFlight = new(int64(50))
		s := source(t, u, p)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 3 {
			assert.PanicsWithValue(t, "the user's", func() { read(ctx, s, 50, time.Second) })
		}
		u.has(50, nil)
		got, _ := read(ctx, s, 50, time.Second)
		assert.Len(t, got, 50)
	})
}

// TestSourceCaughtUp: a source without pending messages is not throttled.
func TestSourceCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 1000}
		s := source(t, u, policy.Policy{MessageRate: policy.PerSecond(10)})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, _ := read(ctx, s, 500, 2*time.Second)
		assert.Less(t, len(got), 30, "it is behind")
		u.has(50, nil)
		time.Sleep(time.Second)
		_, _ = read(ctx, s, 5, time.Second) // has it look
		_, _ = read(ctx, s, 5, time.Second)
		got, took := read(ctx, s, 30, time.Second)
		assert.Len(t, got, 30)
		assert.Zero(t, took)
	})
}

// TestSourceCaughtUpInALongRead: the backlog is read again during a Read, so that a source that has
// caught up stays so.
func TestSourceCaughtUpInALongRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{}
		lim := open(t, policy.Policy{MessageRate: policy.PerSecond(1)})
		s, err := numaflowthrottle.Source(u, lim, numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, _ = read(ctx, s, 5, time.Millisecond) // it has looked just before
		go func() { _, _ = read(ctx, s, 5, time.Minute) }()
		for range 50 {
			time.Sleep(time.Second)
			assert.True(t, lim.Stats().Subscriptions[0].CaughtUp)
		}
	})
}

// TestSourceOfClosedLimiter: it reads nothing, and keeps the data plane from asking at once.
func TestSourceOfClosedLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10}
		lim := open(t, throttletest.PerSecond(100))
		s, err := numaflowthrottle.Source(u, lim, numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		require.NoError(t, lim.Close())
		got, took := read(t.Context(), s, 5, time.Second)
		assert.Empty(t, got)
		assert.Equal(t, time.Second, took)
	})
}

// TestSlowSource: permits come while the user's source takes its time, and no call begins after
// TimeOut.
func TestSlowSource(t *testing.T) {
	for _, c := range []struct {
		rate  int64
		call  time.Duration
		count uint64
		least float64 // of the rate
	}{
		{100, 20 * time.Millisecond, 500, 0.95}, {100, 100 * time.Millisecond, 500, 0.95},
		{1000, 20 * time.Millisecond, 50, 0.75}, {1000, 20 * time.Millisecond, 201, 0.9}, {5000,
			20 * time.Millisecond, 100, 0.45},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &user{left: 1_000_000, during: func() { time.Sleep(c.call) }}
				s := source(t, u, throttletest.PerSecond(c.rate))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begin, n := time.Now(), 0
				for time.Since(begin) < 20*time.Second {
					got, took := read(ctx, s, c.count, time.Second)
					n += len(got)
					assert.Less(t, took, time.Second+c.call)
				}
				all := float64(c.rate) * time.Since(begin).Seconds()
				assert.GreaterOrEqual(t, float64(n), c.least*all)
				assert.LessOrEqual(t, float64(n), all+0.25*float64(c.rate))
			})
		})
	}
}

// TestStrictSource: strict permits are used one at a time, at their time, however long a call of
// the user's source takes.
func TestStrictSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 1_000_000, during: func() { time.Sleep(50 * time.Millisecond) }}
		p := throttletest.PerSecond(100)
		p.Sharing.Mode = policy.Strict
		s := source(t, u, p)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 5 {
			got, _ := read(ctx, s, 500, time.Second)
			assert.InDelta(t, 20, len(got), 2)
		}
		assert.Equal(t, slices.Repeat([]uint64{1}, len(u.asked)), u.asked)
	})
}

// TestUnequalSources: a replica that has less to do than its share leaves the rest to the other.
func TestUnequalSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := memory.New()
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		var mu sync.Mutex
		total := 0
		start := func(name string, u *user) {
			lim, err := dispatch.Open(context.WithoutCancel(ctx),
				dispatch.Config{Policies: dispatch.Fixed(throttletest.PerSecond(100)), Permits: permits, Replica: name})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, lim.Close()) })
			s, err := numaflowthrottle.Source(u, lim, numaflowthrottle.WithTopic(topic), quiet)
			require.NoError(t, err)
			running.Go(func() {
				for ctx.Err() == nil {
					got, _ := read(ctx, s, 500, time.Second)
					mu.Lock()
					total += len(got)
					mu.Unlock()
				}
			})
		}
		start("much", &user{left: 1_000_000})
		little := &user{}
		start("little", little)
		running.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(40 * time.Millisecond)
				little.mu.Lock()
				little.left++
				little.mu.Unlock()
			}
		})
		time.Sleep(3 * time.Second)
		mu.Lock()
		before := total
		mu.Unlock()
		time.Sleep(100 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		assert.InDelta(t, 10_000, total-before, 400)
	})
}

// TestPendingPanics: where it is not the data plane that calls, a panic of the user's comes with
// the next Read, and others go on until then.
func TestPendingPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &rude{user{left: 1000}}
		s, err := numaflowthrottle.Source(u, open(t, throttletest.PerSecond(100)), numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		ctx, die := context.WithCancel(t.Context())
		defer die()
		got, _ := read(ctx, s, 5, time.Second)
		assert.Len(t, got, 5)
		assert.PanicsWithValue(t, "the user's", func() { read(ctx, s, 5, time.Second) })
		s.Ack(ctx, offsetsOf(got[:1]))
		die()
		synctest.Wait()
		next, cancel := context.WithCancel(t.Context())
		defer cancel()
		assert.PanicsWithValue(t, "no Nack", func() { read(next, s, 5, time.Second) })
	})
}

// rude panics.
type rude struct{ user }

func (*rude) Pending(context.Context) int64             { panic("the user's") }
func (*rude) Nack(context.Context, sourcer.NackRequest) { panic("no Nack") }

// TestNoTime: a Read without time gets what is there, and permits are allocated for the next.
func TestNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10_000}
		s := source(t, u, throttletest.PerSecond(100))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		for range 500 {
			got, _ := read(ctx, s, 10, 0)
			n += len(got)
			time.Sleep(10 * time.Millisecond)
		}
		assert.InDelta(t, 500, n, 50)
	})
}

// TestSourceBytes: the bytes of what is handed over are charged, headers included.
func TestSourceBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &user{left: 10_000, padding: 990}
		s := source(t, u, policy.Policy{ByteRate: policy.PerSecond(100_000),
			CaughtUp: policy.CaughtUp{Throttle: new(true)}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin, n := time.Now(), 0
		for range 10 {
			got, _ := read(ctx, s, 500, time.Second)
			n += len(got)
		}
		assert.InDelta(t, 100*time.Since(begin).Seconds(), n, 50)
	})
}

// TestSourceBetweenReads: permits for the next Read come while the data plane is busy with the
// last one: the limit is reached, any interval has at most what the limit allows in it and a gap,
// and a Read gets no more than Count. With strict sharing, slots of the gap are not used.
func TestSourceBetweenReads(t *testing.T) {
	for _, c := range []struct {
		rate  int64
		count int
		gap   time.Duration
		mode  policy.SharingMode
		want  float64 // of the rate
	}{
		{100, 500, time.Second, "", 1},
		{100, 50, 200 * time.Millisecond, "", 1},
		{1000, 100, 50 * time.Millisecond, "", 1},
		{100, 500, 4500 * time.Millisecond, "", 1},
		{100, 100, 4 * time.Second, "", 0.25}, // a batch
		{100, 500, time.Second, policy.Split, 1},
		{100, 500, time.Second, policy.Strict, 0.5},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := throttletest.PerSecond(c.rate)
				p.Sharing.Mode = c.mode
				if c.mode == policy.Split {
					p.Sharing.Replicas = new(int64(1))
				}
				s := source(t, &user{left: 1_000_000}, p)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var came []time.Time
				round := func() {
					out, done := make(chan sourcer.Message), make(chan struct{})
					go func() {
						defer close(done)
						for range out {
							came = append(came, time.Now())
						}
					}()
					before := len(came)
					s.Read(ctx, readRequest{uint64(c.count), time.Second}, out)
					close(out)
					<-done
					assert.LessOrEqual(t, len(came)-before, c.count)
					time.Sleep(c.gap)
				}
				for range 3 {
					round()
				}
				begin, n := time.Now(), len(came)
				for range 20 {
					round()
				}
				assert.InDelta(t, c.want, float64(len(came)-n)/time.Since(begin).Seconds()/float64(c.rate), 0.01)
				for _, d := range []time.Duration{100 * time.Millisecond, time.Second,
					10 * time.Second} {
					most := window.Max(d, window.Times(came))
					assert.LessOrEqual(t, float64(most),
						float64(c.rate)*(d+c.gap+250*time.Millisecond).Seconds()+1, "in %v", d)
				}
			})
		})
	}
}

// TestNoReadComes: permits for a Read that does not come go back, and the other replica has the
// whole limit. The same holds if the source has no messages. After gaps so long that permits cannot
// go back, the other replica loses a batch, once.
func TestNoReadComes(t *testing.T) {
	const batch = 100
	for _, c := range []struct{ gap, after time.Duration }{{time.Second, 3 * time.Second}, {10 * time.Second, 0}} {
		t.Run(c.gap.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				permits := memory.New()
				start := func(name string, u *user) sourcer.Sourcer {
					lim, err := dispatch.Open(context.WithoutCancel(t.Context()),
						dispatch.Config{Policies: dispatch.Fixed(throttletest.PerSecond(100)), Permits: permits, Replica: name})
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, lim.Close()) })
					s, err := numaflowthrottle.Source(u, lim, numaflowthrottle.WithTopic(topic), quiet)
					require.NoError(t, err)
					return s
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stuck, works := start("stuck", &user{left: 1_000_000}), start("works", &user{left: 1_000_000})
				n := 0
				reads := func(d time.Duration) {
					for end := time.Now().Add(d); time.Now().Before(end); {
						got, _ := read(ctx, works, 500, time.Second)
						n += len(got)
					}
				}
				for range 5 {
					_, _ = read(ctx, stuck, batch, time.Second)
					time.Sleep(c.gap)
				}
				_, _ = read(ctx, stuck, batch, time.Second)
				reads(c.after)
				n = 0
				reads(20 * time.Second)
				if c.after > 0 {
					assert.InDelta(t, 2000, n, 20)
				} else {
					assert.GreaterOrEqual(t, n, 2000-batch-20)
				}
			})
		})
	}
}
