package ratekeeper

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// passes is a leader with a quota.
func passes(t testing.TB) *term {
	scope, err := policy.ParseScope("tenant:acme")
	require.NoError(t, err)
	set, err := policy.NewSet([]policy.Entry{{Scope: scope, Settings: policy.Quota{Reserved: new(int64(1 << 20)), Total: new(int64(10 << 20))}}})
	require.NoError(t, err)
	r := &Ratekeeper{Permits: memory.New(), Cluster: "c", Name: "k", snapshot: policy.Snapshot{Set: set}}
	tm := &term{Ratekeeper: r, number: 1, events: map[quota.ID]float64{}}
	require.NoError(t, tm.resume(t.Context()))
	require.NoError(t, tm.adopt(set, 1))
	return tm
}

// FuzzUsage: whatever replicas publish as usage, a pass finds a rate for the quota.
func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"replica":"a","started":{"tenant:acme":100},"backends":[{"backend":"db","zone":"a",`+
		`"load":{"queue":900,"target":800,"spring":200},"costs":{"tenant:acme":8192},"time":1}]}`), []byte(`{"replica":"a"}`))
	f.Add([]byte(`{"started":{"tenant:acme":-1e300}}`), []byte(`%`))
	f.Fuzz(func(t *testing.T, one, other []byte) {
		promptly.Do(t, func() {
			tm := passes(t)
			for now := 1.0; now < 5; now++ {
				usages, _ := parse([][]byte{one, other})
				_ = tm.feed(usages, now)
				decisions := tm.keeper.Decide(now)
				require.Len(t, decisions, 1)
				tm.complete(decisions)
				require.True(t, decisions[0].Smoothed >= 0 && decisions[0].Smoothed <= 10<<20, "%+v", decisions[0])
				_ = tm.keeper.Readers(now)
			}
			_, err := tm.write(t.Context(), 1, tm.keeper.Decide(5))
			require.NoError(t, err)
			_, _, err = dispatch.Rates(t.Context(), tm.Permits, "c", []quota.ID{"tenant:acme"})
			require.NoError(t, err)
		})
	})
}

// FuzzReport: whatever is sent as a report, it is refused, or published so that a pass can read it.
// A body that can be read is also sent with the present time and by the backend that it names:
// with another time it would only be refused.
func FuzzReport(f *testing.F) {
	const sound = `{"backend":"db","zone":"a","load":{"queue":900,"target":800,"spring":200},"costs":{"tenant:acme":8192},"time":1}`
	f.Add(sound)
	f.Add(`{"backend":"db","time":1e300}{}`)
	f.Add(`[`)
	f.Fuzz(func(t *testing.T, body string) {
		promptly.Do(t, func() {
			tm := passes(t)
			status := post(tm, "db", body)
			require.Contains(t, []int{http.StatusOK, http.StatusBadRequest, http.StatusForbidden}, status)
			var report quota.Report
			if json.Unmarshal([]byte(body), &report) == nil {
				report.Time = float64(time.Now().UnixMicro()) / 1e6
				text, err := json.Marshal(report)
				require.NoError(t, err)
				status = post(tm, report.Backend, string(text))
				require.Contains(t, []int{http.StatusOK, http.StatusBadRequest}, status)
			}
			if body == sound {
				require.Equal(t, http.StatusOK, status)
			}
			texts, err := tm.Permits.Published(t.Context(), permits.UsageOf("c"))
			require.NoError(t, err)
			usages, faults := parse(texts)
			require.Empty(t, faults)
			require.Equal(t, status == http.StatusOK, len(usages) == 1)
			require.Empty(t, tm.feed(usages, 2))
			decisions := tm.keeper.Decide(2)
			require.Len(t, decisions, 1)
			tm.complete(decisions)
			require.True(t, decisions[0].Smoothed >= 0 && decisions[0].Smoothed <= 10<<20, "%+v", decisions[0])
		})
	})
}

// post sends a report with the token of a backend, and returns the status of the answer.
func post(tm *term, backend, body string) int {
	w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/reports", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer sesame")
	owner := func(string) (string, bool) { return backend, true }
	tm.Handler(owner).ServeHTTP(w, req)
	return w.Code
}
