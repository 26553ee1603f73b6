package permits_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// FuzzPoolRecord: whatever is stored as a pool's record, a heartbeat is answered, and the record
// that replaces it is sound; one of a newer version stays.
func FuzzPoolRecord(f *testing.F) {
	one := heartbeat("a")
	f.Add([]byte(`{"version":3}`), 1.7e9)
	f.Add(permits.PoolRecords([]*permits.Request{one})[0].Apply(nil, 1000), 1001.0)
	f.Add(permits.PoolRecords(rivals(func() *permits.Request { return heartbeat("a") }))[0].Apply(nil, 1000), 1001.0)
	f.Fuzz(func(t *testing.T, stored []byte, now float64) {
		ask := func() *permits.Request {
			r := heartbeat("b")
			r.Heartbeat.Source = "b"
			return r
		}
		record(t, stored, now, ask, func(r *permits.Request) {
			a := r.Heartbeat.Answer
			require.GreaterOrEqual(t, a.Active, 1)
			require.GreaterOrEqual(t, r.Heartbeat.Line.Rate, 0.0)
		})
	})
}

// FuzzGroupsRecord: the same with a division over worker groups.
func FuzzGroupsRecord(f *testing.F) {
	f.Add([]byte(`{"version":3}`), 1.7e9)
	f.Add(permits.PoolRecords([]*permits.Request{draw(5)})[0].Apply(nil, 1000), 1001.0)
	f.Add(permits.PoolRecords(rivals(func() *permits.Request { return draw(5) }))[0].Apply(nil, 1000), 1001.0)
	newer := draw(5)
	newer.Draw.Rev.Number, newer.Draw.Ramp = 7, schedule.Ramp{From: 10, Over: 90}
	f.Add(permits.PoolRecords([]*permits.Request{newer})[0].Apply(nil, 1000), 1001.0)
	f.Fuzz(func(t *testing.T, stored []byte, now float64) {
		ask := func() *permits.Request {
			r := draw(7)
			r.Draw.Source = "b"
			return r
		}
		record(t, stored, now, ask, func(r *permits.Request) {
			require.GreaterOrEqual(t, r.Draw.Drawn.N, int64(0))
			require.LessOrEqual(t, r.Draw.Drawn.N, int64(7))
			require.GreaterOrEqual(t, r.Draw.Allowed, 0.0)
		})
	})
}

func record(t *testing.T, stored []byte, now float64, ask func() *permits.Request, check func(*permits.Request)) {
	if !(now >= 1 && now <= 1e10) {
		return
	}
	promptly.Do(t, func() {
		r := ask()
		next := permits.PoolRecords([]*permits.Request{r})[0].Apply(stored, now)
		if next == nil {
			require.ErrorContains(t, r.Err, "upgrade")
			return
		}
		require.NoError(t, r.Err)
		check(r)
		r = ask()
		next = permits.PoolRecords([]*permits.Request{r})[0].Apply(next, now)
		require.NotNil(t, next, "%v", r.Err)
		require.NoError(t, r.Damage, "%s", next)
		check(r)
	})
}
