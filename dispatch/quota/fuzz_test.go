package quota_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// FuzzRates: whatever is stored as rates, an id's rate is a number that binds, or the rates are
// refused.
func FuzzRates(f *testing.F) {
	f.Add([]byte(`{"epoch":5,"term":5,"keeper":"k","time":100,"version":2}`),
		[]byte(`{"rate":5,"average":4096}`), 100.0)
	f.Add([]byte(`{"time":100}`), []byte(`{"rate":1e300}`), 100.0)
	f.Add([]byte(`{"time":1e300,"term":-1}`), []byte(`{"average":-1}`), 1.0)
	f.Fuzz(func(t *testing.T, head, row []byte, now float64) {
		if !(now >= 1 && now <= 1e10) {
			return
		}
		promptly.Do(t, func() {
			rates, err := quota.ParseRates(head)
			if err != nil {
				require.Zero(t, rates)
			}
			found, err := quota.ParseRate(row)
			if err != nil {
				require.Zero(t, found)
			}
			acme, err := policy.ParseScope("tenant:acme")
			require.NoError(t, err)
			rates.Rates = map[quota.ID]quota.Rate{"tenant:acme": found}
			q := policy.EffectiveQuota{Reserved: 1 << 20, Total: 10 << 20}
			rate := rates.Of(acme, q, now)
			require.True(t, rate >= 0 && rate <= 1<<53, "%v", rate)
			require.False(t, math.IsNaN(rates.Reserved(acme, q)))
			again, err := json.Marshal(rates)
			require.NoError(t, err)
			_, err = quota.ParseRates(again)
			require.NoError(t, err)
		})
	})
}

// FuzzReport: whatever a backend reports, it is refused or each rate is at least the reserved one
// and at most the total.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"backend":"db","zone":"a","load":{"queue":900,"target":800,"spring":200},`+
		`"costs":{"tenant:acme":8192,"tag:x":1e9},"time":100}`), 3.0)
	f.Add([]byte(`{"backend":"db","zone":"a","load":{"queue":1e300,"target":1e-300,"spring":1e-300},`+
		`"costs":{"tenant:acme":9e15},"time":100}`), 1e15)
	f.Fuzz(func(t *testing.T, text []byte, started float64) {
		var r quota.Report
		if json.Unmarshal(text, &r) != nil {
			return
		}
		promptly.Do(t, func() {
			var k quota.Keeper
			q := quota.Quota{Reserved: 1 << 20, Total: 10 << 20}
			require.NoError(t, k.SetQuotas(map[quota.ID]quota.Quota{"tenant:acme": q}, 99))
			_ = k.Started("tenant:acme", started, 99.5) // or refused
			for now := 100.0; now < 110; now++ {
				r.Time = now
				if k.Report(r, now) != nil {
					return
				}
				for _, d := range k.Decide(now) {
					require.True(t, d.Smoothed >= 0 && d.Smoothed <= 1<<53, "%+v", d)
					require.True(t, d.AverageCost >= 0 && d.AverageCost <= 1<<54, "%+v", d)
					_, err := json.Marshal(d)
					require.NoError(t, err)
				}
				_ = k.Readers(now)
			}
		})
	})
}
