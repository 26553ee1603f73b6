package permits_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

func heartbeat(member string) *permits.Request {
	return &permits.Request{Key: "throttle:limit:{a}", Heartbeat: &permits.Heartbeat{
		Member: member, TTL: 10, Rate: 100, Ramp: schedule.Ramp{From: 10, Over: 90, TTL: 60}, Active: true,
	}}
}

func draw(want int64) *permits.Request {
	return &permits.Request{Key: "throttle:limit:{a}", Draw: &permits.Draw{
		Terms: pool.Terms{Names: []string{"red", "blue"}, Permits: 100, Period: 1, Ahead: 0.1, TTL: 10},
		Visit: pool.Visit{Group: "red", Member: "r", Want: want}, Rate: 100,
	}}
}

// apply applies the one record of the requests, and returns its text.
func apply(t *testing.T, old []byte, now float64, requests ...*permits.Request) []byte {
	records := permits.PoolRecords(requests)
	require.Len(t, records, 1)
	return records[0].Apply(old, now)
}

func TestRecords(t *testing.T) {
	records := permits.PoolRecords([]*permits.Request{
		heartbeat("a"),
		{Key: "k", Allocate: &permits.Allocate{}},
		draw(1),
		heartbeat("b"),
	})
	require.Len(t, records, 2)
	assert.Equal(t, "throttle:pool:{a}", records[0].Key)
	assert.Equal(t, "throttle:groups:{a}", records[1].Key)
	for _, r := range records {
		require.NotNil(t, r.Apply(nil, 1000))
	}
	assert.Equal(t, time.Minute, records[0].TTL, "the ramp's: it is longer than four of the pool's")
	assert.Equal(t, time.Hour, records[1].TTL)
}

// Two replicas whose heartbeats come together see each other, and the ramp rises with the clock.
func TestHeartbeats(t *testing.T) {
	a, b := heartbeat("a"), heartbeat("b")
	text := apply(t, nil, 1000, a, b)
	assert.Equal(t, 1, a.Heartbeat.Answer.Active)
	assert.Equal(t, 2, b.Heartbeat.Answer.Active)
	assert.Equal(t, 10.0, b.Heartbeat.Line.Rate)
	assert.Equal(t, 1000.0, b.Now())

	a, b = heartbeat("a"), heartbeat("b")
	b.Heartbeat.Leave = true
	text = apply(t, text, 1010, b)
	text = apply(t, text, 1010, a)
	assert.Equal(t, pool.Answer{}, b.Heartbeat.Answer)
	assert.Equal(t, 1, a.Heartbeat.Answer.Active)
	assert.Equal(t, 20.0, a.Heartbeat.Line.Rate)

	fixed := heartbeat("c")
	fixed.Heartbeat.Fixed = true
	apply(t, text, 1011, fixed)
	assert.Equal(t, pool.Answer{}, fixed.Heartbeat.Answer)
	assert.Equal(t, 21.0, fixed.Heartbeat.Line.Rate)
}

func TestDraws(t *testing.T) {
	d := draw(3)
	text := apply(t, nil, 1000.5, d)
	assert.Equal(t, int64(3), d.Draw.Drawn.N)
	assert.Equal(t, 100.0, d.Draw.Allowed)
	slow := draw(1e6)
	slow.Draw.Ramp = schedule.Ramp{From: 10, Over: 90}
	apply(t, text, 1000.6, slow)
	assert.Equal(t, 10.0, slow.Draw.Allowed)
	assert.Less(t, slow.Draw.Drawn.N, int64(20), "a period of the ramp's rate")
}

// TestOldTerms: a member that has not heard of the newest policies draws by their terms, and does
// not put its own back.
func TestOldTerms(t *testing.T) {
	older, newer := schedule.Revision{Epoch: 1, Number: 9}, schedule.Revision{Epoch: 2, Number: 1}
	visit := func(group string, rate int64, rev schedule.Revision) *permits.Request {
		r := draw(1e6)
		d := r.Draw
		d.Terms.Permits, d.Rate, d.Rev = rate, float64(rate), rev
		d.Visit.Group, d.Visit.Member = group, group
		return r
	}
	var text []byte
	drawn := map[string]int64{}
	for i := range 220 { // the last 200 are ten seconds
		for _, r := range []*permits.Request{visit("red", 100, newer), visit("blue", 5000, older)} {
			if i == 0 && r.Draw.Rev == newer {
				r = visit("red", 5000, older) // the newer policies come later
			}
			text = apply(t, text, 1000.99+float64(i)/20, r)
			require.NoError(t, r.Err)
			require.NoError(t, r.Damage)
			if i >= 20 {
				drawn[r.Draw.Visit.Group] += r.Draw.Drawn.N
				assert.Equal(t, 100.0, r.Draw.Allowed)
			}
		}
	}
	t.Log(drawn)
	assert.InDelta(t, 500, drawn["red"], 25)
	assert.InDelta(t, 500, drawn["blue"], 25)

	other := visit("red", 6000, schedule.Revision{Epoch: 2, Number: 2})
	other.Draw.Terms = pool.Terms{
		Names: []string{"red", "green"}, Permits: 8_640_000, Period: 86400, Keep: 1, Ahead: 1, TTL: 60,
	}
	other.Draw.Rate = 100
	text = apply(t, text, 1020, other)
	old := visit("blue", 100, newer)
	records := permits.PoolRecords([]*permits.Request{old})
	text = records[0].Apply(text, 1020)
	assert.Equal(t, other.Draw.Terms, old.Draw.InForce)
	assert.False(t, old.Draw.Drawn.Known, "its group is no longer one of the limit's")
	assert.Equal(t, 48*time.Hour, records[0].TTL)
	apply(t, text, 1020, other)
	assert.NoError(t, other.Damage)
}

// TestDamagedTerms: stored terms out of bounds are damage.
func TestDamagedTerms(t *testing.T) {
	r := draw(1)
	r.Draw.Rev.Number = 5
	text := string(apply(t, nil, 1000, r))
	for from, to := range map[string]string{
		`"Number":5`: `"Number":1e15`, `"permits":100`: `"permits":-1`, `"period":1`: `"period":0`,
		`"rate":100`: `"rate":1e300`, `"ttl":10`: `"ttl":1e12`,
	} {
		require.Contains(t, text, from)
		apply(t, []byte(strings.Replace(text, from, to, 1)), 1000, r)
		require.ErrorContains(t, r.Damage, "damaged record", to)
	}
}

// A record that cannot be read is replaced, which the request reports; one of a newer version is
// refused and stays.
func TestDamagedAndNewerRecords(t *testing.T) {
	for _, text := range []string{
		`%%%`, `{"term":7,"size":3}`, `{"version":0}`, `{"version":"2"}`, `{"version":2,"clock":"x"}`,
		`{"version":2,"clock":1`, `[]`, `null`, `{"version":7000000}`,
	} {
		for _, r := range []*permits.Request{heartbeat("a"), draw(1)} {
			next := apply(t, []byte(text), 1000, r)
			require.NoError(t, r.Err, text)
			require.ErrorContains(t, r.Damage, "damaged record", text)
			again := apply(t, next, 1001, r)
			require.NoError(t, r.Damage)
			require.Contains(t, string(again), `"version":3`)
		}
	}
	for _, text := range []string{`{"version":5}`, `{"version":5,"clock":"x","term":"y"}`} {
		for _, r := range []*permits.Request{heartbeat("a"), draw(1)} {
			require.Nil(t, apply(t, []byte(text), 1000, r))
			require.EqualError(t, r.Err, "record of version 5: this program knows 4: upgrade this program")
			require.NoError(t, r.Damage)
		}
	}
}

// rivals are requests of replicas of two policy stores; those of b have the higher rate.
func rivals(request func() *permits.Request) (all []*permits.Request) {
	for i, source := range []string{"a", "b"} {
		r := request()
		rev := schedule.Revision{Epoch: int64(7 * i), Number: 1}
		if r.Heartbeat != nil {
			r.Heartbeat.Source, r.Heartbeat.Rev, r.Heartbeat.Rate = source, rev, 100*float64(1+i)
		} else {
			r.Draw.Source, r.Draw.Rev, r.Draw.Rate = source, rev, 100*float64(1+i)
			r.Draw.Terms.Permits *= int64(1 + i)
			r.Draw.Terms.Names, r.Draw.Visit.Group = []string{source}, source
		}
		all = append(all, r)
	}
	return all
}

// TestRivalRecords: of replicas of two policy stores, all have the lower rate, and are told of the
// other store. The record is of a version that programs which do not know of policy stores refuse,
// until one of the two has been silent for a minute.
func TestRivalRecords(t *testing.T) {
	beat, drawn := func() *permits.Request { return heartbeat("a") }, func() *permits.Request { return draw(1) }
	for _, request := range []func() *permits.Request{beat, drawn} {
		both := rivals(request)
		text := apply(t, nil, 1000, both[1])
		require.Contains(t, string(text), `"version":3`)
		text = apply(t, text, 1000, both[0])
		text = apply(t, text, 1001, both[1])
		require.Contains(t, string(text), `"version":4`)
		for i, told := range []string{"b", "a"} {
			if h := both[i].Heartbeat; h != nil {
				assert.Equal(t, told, h.Rival)
				assert.Equal(t, 100*float64(i), h.Lower, "the other store's")
			} else {
				d := both[i].Draw
				assert.Equal(t, told, d.Rival)
				assert.Equal(t, 100.0, d.Allowed)
				assert.Equal(t, int64(100), d.InForce.Permits)
				assert.Equal(t, []string{"a", "b"}, d.InForce.Names)
				assert.True(t, d.Drawn.Known, "its group is one of those of both")
			}
		}
		plain := request() // of a replica whose policies have no id
		if plain.Draw != nil {
			plain.Draw.Rev, plain.Draw.Terms = schedule.Revision{Epoch: 1, Number: 1}, both[0].Draw.Terms
		}
		text = apply(t, text, 1001, plain)
		require.NoError(t, plain.Damage)
		for _, r := range append(both, both...) { // after which nothing is known of either store
			text = apply(t, text, 1002, r)
			require.NoError(t, r.Damage)
		}
		require.Contains(t, string(text), `"version":4`)
		text = apply(t, text, 1063, both[1])
		require.Contains(t, string(text), `"version":3`)
		if h := both[1].Heartbeat; h != nil {
			assert.Empty(t, h.Rival)
			assert.Zero(t, h.Lower)
		} else {
			assert.Empty(t, both[1].Draw.Rival)
			assert.Equal(t, 200.0, both[1].Draw.Allowed)
			assert.Equal(t, []string{"b"}, both[1].Draw.InForce.Names)
		}
		for _, r := range both {
			require.NoError(t, r.Err)
			require.NoError(t, r.Damage)
		}
	}
}

// TestOlderRecords: a record of the version before is read.
func TestOlderRecords(t *testing.T) {
	for _, r := range []*permits.Request{heartbeat("a"), draw(1)} {
		text := strings.Replace(string(apply(t, nil, 1000, r)), `"version":3`, `"version":2`, 1)
		require.Contains(t, text, `"version":2`)
		apply(t, []byte(text), 1001, r)
		require.NoError(t, r.Err)
		require.NoError(t, r.Damage)
	}
}

func TestWaitAfterConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		longest := make([]time.Duration, 24)
		for attempt := range longest {
			for range 200 {
				start := time.Now()
				require.NoError(t, permits.WaitAfterConflict(t.Context(), attempt))
				longest[attempt] = max(longest[attempt], time.Since(start))
			}
		}
		for i, ms := range []int{2, 4, 8, 16, 32, 64, 128, 128} {
			bound, waits := time.Duration(ms)*time.Millisecond, longest[3*i:3*i+3]
			assert.Zero(t, waits[0]+waits[1])
			assert.Less(t, waits[2], bound)
			assert.Greater(t, waits[2], bound/2)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		for attempt := range 3 {
			assert.ErrorIs(t, permits.WaitAfterConflict(ctx, attempt), context.DeadlineExceeded)
		}
	})
}
