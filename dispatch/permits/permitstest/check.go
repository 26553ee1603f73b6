package permitstest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// Allocate makes one allocation of the limit with that key.
func Allocate(
	ctx context.Context, store dispatch.PermitStore, key string, r schedule.Request,
) (schedule.Reply, error) {
	q := &permits.Request{Key: key, Allocate: &permits.Allocate{Request: r}}
	store.Do(ctx, []*permits.Request{q})
	return q.Allocate.Reply, q.Err
}

// Check checks what a permit store does for one caller and for several at once. It takes a second
// of the store's clock.
func Check(t *testing.T, store dispatch.PermitStore) {
	t.Helper()
	keepsValues(t, store)
	keepsRows(t, store)
	keepsRecords(t, store)
	ordersRevisions(t, store)
	boundsRecords(t, store)
	countsEachMember(t, store)
	slowsDown(t, store)
}

// newKey is the key of a limit that no other test has.
func newKey() string {
	return permits.LimitKey(fmt.Sprintf("permitstest-%d", rand.Int64()), policy.ClusterScope(), false)
}

func request() schedule.Request {
	return schedule.Request{
		Subscription: "a", Weight: 1, Demand: 100, Want: 10, Round: 0.1, Rate: 100,
		Rev: schedule.Revision{Epoch: 1, Number: 1}, Nonce: 7,
	}
}

func heartbeat(key, member string) *permits.Request {
	return &permits.Request{
		Key: key, Heartbeat: &permits.Heartbeat{Member: member, TTL: 60, Rate: 100},
	}
}

func draw(key string) *permits.Request {
	return &permits.Request{Key: key, Draw: &permits.Draw{
		Terms: pool.Terms{
			Names: []string{"red", "blue"}, Permits: 100, Period: 1, Ahead: 0.1, TTL: 60,
		},
		Visit: pool.Visit{Group: "red", Member: "a", Want: 1}, Rate: 100,
	}}
}

// keepsValues checks Update and Value.
func keepsValues(t *testing.T, store dispatch.PermitStore) {
	key := permits.RatesKey(newKey())
	value, before, err := store.Value(t.Context(), key)
	require.NoError(t, err)
	assert.Empty(t, value)
	for _, text := range []string{"one", "two"} {
		replace := func(old []byte, now float64) []byte {
			assert.Equal(t, string(value), string(old))
			assert.GreaterOrEqual(t, now, before)
			return []byte(text)
		}
		require.NoError(t, store.Update(t.Context(), key, time.Minute, replace))
		value, before, err = store.Value(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, text, string(value))
	}
	remove := func([]byte, float64) []byte { return nil }
	require.NoError(t, store.Update(t.Context(), key, time.Minute, remove))
	value, _, err = store.Value(t.Context(), key)
	require.NoError(t, err)
	assert.Empty(t, value)
}

// keepsRows checks SetRows, Rows and RowNames: for more rows than one transaction of etcd has.
func keepsRows(t *testing.T, store dispatch.PermitStore) {
	key, ctx := permits.RatesKey(newKey()), t.Context()
	read := func(names ...string) (texts []string) {
		t.Helper()
		rows, err := store.Rows(ctx, key, names)
		require.NoError(t, err)
		for _, row := range rows {
			texts = append(texts, string(row))
		}
		return texts
	}
	set := func(head string, rows map[string][]byte) bool {
		t.Helper()
		done, err := store.SetRows(ctx, key, []byte(head), time.Minute, rows)
		require.NoError(t, err)
		return done
	}
	put := func(head string) {
		t.Helper()
		replace := func([]byte, float64) []byte { return []byte(head) }
		require.NoError(t, store.Update(ctx, key, time.Minute, replace))
	}
	assert.Equal(t, []string{"", ""}, read("a", "b"))
	put("mine")
	assert.True(t, set("mine", map[string][]byte{"a/1": []byte("one"), "b": []byte("two")}))
	assert.Equal(t, []string{"two", "", "one"}, read("b", "c", "a/1"))
	put("another")
	assert.False(t, set("mine", map[string][]byte{"b": []byte("late"), "a/1": nil}))
	assert.True(t, set("another", nil))
	assert.Equal(t, []string{"one", "two"}, read("a/1", "b"))
	many := map[string][]byte{"b": nil}
	for i := range permits.RowsPage - 1 {
		many[fmt.Sprint("tag:", i)] = fmt.Append(nil, i)
	}
	assert.True(t, set("another", many))
	delete(many, "b")
	many["a/1"] = nil
	names, err := store.RowNames(ctx, key)
	require.NoError(t, err)
	assert.ElementsMatch(t, slices.Collect(maps.Keys(many)), names)
	texts := read(slices.Sorted(maps.Keys(many))...)
	assert.Equal(t, "one", texts[0])
	assert.Equal(t, "0", texts[1])
	assert.Equal(t, "998", texts[999])
}

// boundsRecords checks that Published and PublishedBy return no more bytes than they may, that
// Published returns almost as many, and that each record can be read by its name.
func boundsRecords(t *testing.T, store dispatch.PermitStore) {
	cluster := fmt.Sprintf("permitstest-%d", rand.Int64())
	const ttl = 10 * time.Minute // on a busy machine, an etcd takes a minute for all of them
	large := make([]byte, permits.MaxRecord)
	for i := range permits.MaxRecordsBytes/len(large) + 2 {
		name := fmt.Sprint("large-", i)
		require.NoError(t, store.Publish(t.Context(), cluster, name, large, ttl))
		require.NoError(t, store.Publish(t.Context(), cluster, name+"-small", []byte(name), ttl))
	}
	records, err := store.Published(t.Context(), cluster)
	require.NoError(t, err)
	bytes := len(slices.Concat(records...))
	assert.LessOrEqual(t, bytes, permits.MaxRecordsBytes)
	assert.Greater(t, bytes, permits.MaxRecordsBytes-permits.MaxRecord)

	const odd = "eu/1 %2F{x}"
	require.NoError(t, store.Publish(t.Context(), cluster, odd, []byte("odd"), ttl))
	names, err := store.Publishers(t.Context(), cluster)
	require.NoError(t, err)
	assert.Len(t, names, 2*(permits.MaxRecordsBytes/len(large)+2)+1)
	assert.Contains(t, names, odd)
	some, err := store.PublishedBy(t.Context(), cluster, []string{"large-1-small", "missing", odd})
	require.NoError(t, err)
	assert.ElementsMatch(t, [][]byte{[]byte("large-1"), []byte("odd")}, some)
	records, err = store.PublishedBy(t.Context(), cluster, names)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(slices.Concat(records...)), permits.MaxRecordsBytes)
}

// keepsRecords checks that one Do answers all kinds of requests for a limit, those for one record
// in order; that a damaged record is reported and replaced; and that one of a newer version
// stays, and fails no other request.
func keepsRecords(t *testing.T, store dispatch.PermitStore) {
	key := newKey()
	first, second, drawn := heartbeat(key, "a"), heartbeat(key, "b"), draw(key)
	allocated := &permits.Request{Key: key, Allocate: &permits.Allocate{Request: request()}}
	do := func() {
		t.Helper()
		store.Do(t.Context(), []*permits.Request{first, allocated, drawn, second})
	}
	now := func() float64 {
		t.Helper()
		_, now, err := store.Value(t.Context(), permits.PoolKey(key))
		require.NoError(t, err)
		return now
	}
	before := now()
	do()
	after := now()
	for _, r := range []*permits.Request{first, allocated, drawn, second} {
		require.NoError(t, r.Err)
		require.NoError(t, r.Damage)
		assert.GreaterOrEqual(t, r.Now(), before)
		assert.LessOrEqual(t, r.Now(), after)
	}
	assert.Equal(t, 1, first.Heartbeat.Answer.Active)
	assert.Equal(t, 2, second.Heartbeat.Answer.Active)
	assert.Equal(t, int64(1), drawn.Draw.Drawn.N)
	assert.Positive(t, allocated.Allocate.Reply.N)

	write := func(text string) {
		t.Helper()
		replace := func([]byte, float64) []byte { return []byte(text) }
		for _, key := range []string{permits.PoolKey(key), permits.GroupsKey(key)} {
			require.NoError(t, store.Update(t.Context(), key, time.Minute, replace))
		}
	}
	write("%%%")
	do()
	require.ErrorContains(t, first.Damage, "damaged")
	require.NoError(t, second.Damage, "it finds the record that has replaced the damaged one")
	require.ErrorContains(t, drawn.Damage, "damaged")
	for _, r := range []*permits.Request{first, second, drawn} {
		require.NoError(t, r.Err)
	}
	do()
	require.NoError(t, first.Damage)
	require.NoError(t, drawn.Damage)

	const newer = `{"version":99}`
	write(newer)
	do()
	for _, r := range []*permits.Request{first, second, drawn} {
		require.ErrorContains(t, r.Err, "upgrade")
		require.NoError(t, r.Damage)
	}
	require.NoError(t, allocated.Err)
	for _, key := range []string{permits.PoolKey(key), permits.GroupsKey(key)} {
		value, _, err := store.Value(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, newer, string(value))
	}
}

// ordersRevisions checks that a rate of a later epoch is newer, whatever its number is, and that of
// two rates of one revision in a schedule the lower one is in force.
func ordersRevisions(t *testing.T, store dispatch.PermitStore) {
	key := newKey()
	for _, c := range []struct {
		epoch, number int64
		rate, inForce float64
	}{
		{1, 100, 100, 100},
		{2, 1, 50, 50},    // newer: a later epoch
		{1, 200, 400, 50}, // older
		{2, 2, 70, 70},
		{2, 2, 60, 60}, // the lower one
		{2, 2, 70, 60},
	} {
		r := request()
		r.Rate, r.Rev = c.rate, schedule.Revision{Epoch: c.epoch, Number: c.number}
		reply, err := Allocate(t.Context(), store, key, r)
		require.NoError(t, err)
		assert.Equal(t, c.inForce, reply.Rate, "%+v", c)
		d := draw(key)
		d.Draw.Rate, d.Draw.Rev = min(c.rate, c.inForce), r.Rev
		if r.Rev == (schedule.Revision{Epoch: 1, Number: 200}) {
			d.Draw.Rate = c.rate
		}
		store.Do(t.Context(), []*permits.Request{d})
		require.NoError(t, d.Err)
		assert.Equal(t, c.inForce, d.Draw.Allowed, "%+v", c)
	}
}

// countsEachMember checks that heartbeats which come at the same time are all counted.
func countsEachMember(t *testing.T, store dispatch.PermitStore) {
	const members = 8
	key := newKey()
	beat := func(member string) (r *permits.Request) {
		for range 100 { // one that lost too often has timed out
			r = heartbeat(key, member)
			store.Do(t.Context(), []*permits.Request{r})
			if r.Err == nil {
				break
			}
		}
		return r
	}
	var all sync.WaitGroup
	for i := range members {
		all.Go(func() { assert.NoError(t, beat(fmt.Sprint(i)).Err) })
	}
	all.Wait()
	last := beat("0")
	require.NoError(t, last.Err)
	assert.Equal(t, members, last.Heartbeat.Answer.Active)
}

// slowsDown checks that a limit slows down for all by the answers that one replica's allocations
// carry, and that State shows it.
func slowsDown(t *testing.T, store dispatch.PermitStore) {
	key := newKey()
	allocate := func(a schedule.Answers) schedule.Reply {
		r := request()
		r.Rate, r.Rule, r.Answers = busy.Max,
			busy.Rule{Mode: busy.ByFraction, MinRate: 1, Tolerance: 0.01}, a
		reply, err := Allocate(t.Context(), store, key, r)
		require.NoError(t, err)
		return reply
	}
	outcomes := func() schedule.Outcomes {
		s, _, err := store.State(t.Context(), key)
		require.NoError(t, err)
		return s.Outcomes
	}
	assert.InEpsilon(t, busy.Max, allocate(schedule.Answers{OK: 100, Busy: 100}).Rate, 1e-9)
	busyWindow := outcomes()
	time.Sleep(1100 * time.Millisecond) // longer than a window
	slowed := allocate(schedule.Answers{}).Rate
	next := outcomes()
	answeredWell := 100 / (next.Since - busyWindow.Since) // a second
	assert.InEpsilon(t, 0.95*answeredWell, slowed, 1e-6)
	assert.InEpsilon(t, slowed, next.Service.Limit, 1e-9)
}

// BacksOff checks that a store which compares and swaps does not repeat an Update at once that
// loses each time. It takes the store's timeout, which is to be some 300 ms.
func BacksOff(t *testing.T, store dispatch.PermitStore) {
	t.Helper()
	key, attempts := permits.RatesKey(newKey()), 0
	start := time.Now()
	err := store.Update(t.Context(), key, time.Minute, func([]byte, float64) []byte {
		attempts++
		other := func([]byte, float64) []byte { return fmt.Append(nil, attempts) }
		assert.NoError(t, store.Update(t.Context(), key, time.Minute, other))
		return []byte("lost")
	})
	require.Error(t, err)
	// After the fourth, the mean of the delays is 16 ms.
	elapsed := time.Since(start)
	assert.Less(t, attempts, 10+int(elapsed/(8*time.Millisecond)), "in %v", elapsed)
}
