package ratekeeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const token = "sesame-sesame-of-" // and the backend's name

func owner(got string) (backend string, ok bool) { return strings.CutPrefix(got, token) }

// post sends a report with the right token.
func post(k *ratekeeper.Ratekeeper, body string) *httptest.ResponseRecorder {
	var r quota.Report
	_ = json.Unmarshal([]byte(body), &r) // an invalid one has the token of ""
	return send(k.Handler(owner), http.MethodPost, "Bearer "+token+r.Backend, body)
}

func send(h http.Handler, method, authorization, body string) *httptest.ResponseRecorder {
	w, req := httptest.NewRecorder(), httptest.NewRequest(method, "/reports", strings.NewReader(body))
	req.Header.Set("Authorization", authorization)
	h.ServeHTTP(w, req)
	return w
}

// report returns a report as JSON. Its time is now plus ahead, in seconds.
func report(t *testing.T, ahead float64, change func(*quota.Report)) string {
	t.Helper()
	r := quota.Report{
		Backend: "db", Zone: "a", Load: quota.Load{Queue: 900, Target: 800, Spring: 200},
		Costs: map[quota.ID]float64{"tenant:acme": 8192, "tag:unknown": 4096},
		Time:  float64(time.Now().UnixMicro())/1e6 + ahead,
	}
	if change != nil {
		change(&r)
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	return string(text)
}

func TestReportsAreAcceptedOrRefused(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("cluster", policy.QuotaSettings{Zones: []string{"a", "b"}})
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		k, stop := w.keeper("k")
		defer func() { stop(); w.wg.Wait() }()
		time.Sleep(1500 * time.Millisecond)

		h := k.Handler(owner)
		for _, c := range []struct {
			name, method, authorization string
			status                      int
			header, value               string
		}{
			{"no token", http.MethodPost, "", 401, "WWW-Authenticate", "Bearer"},
			{"another token", http.MethodPost, "Bearer open-" + token + "db", 401, "WWW-Authenticate", "Bearer"},
			{"part of the token", http.MethodPost, "Bearer " + token[:5], 401, "WWW-Authenticate", "Bearer"},
			{"without Bearer", http.MethodPost, token + "db", 401, "WWW-Authenticate", "Bearer"},
			{"of another backend", http.MethodPost, "Bearer " + token + "archive", 403, "", ""},
			{"another scheme", http.MethodPost, "Basic " + token + "db", 401, "WWW-Authenticate", "Bearer"},
			{"of another backend, in lower case", http.MethodPost, "bearer " + token + "archive", 403, "", ""},
			{"not by POST, in upper case", http.MethodGet, "BEARER " + token + "db", 405, "Allow", "POST"},
			{"not by POST", http.MethodGet, "Bearer " + token + "db", 405, "Allow", "POST"},
			{"not by POST, no token", http.MethodPut, "", 401, "", ""},
		} {
			got := send(h, c.method, c.authorization, report(t, 0, nil))
			assert.Equal(t, c.status, got.Code, c.name)
			assert.Equal(t, c.value, got.Header().Get(c.header), c.name)
			assert.NotContains(t, got.Body.String(), token[:5], c.name)
		}
		assert.Empty(t, k.Status().Readers)

		reportWith := func(change func(*quota.Report)) string { return report(t, 0, change) }

		for _, c := range []struct {
			name, body string
			status     int
			want       string
		}{
			{"not JSON", "{", 400, "want one report as JSON: unexpected EOF"},
			{"empty", "", 400, "want one report as JSON: EOF"},
			{"a number out of range", `{"costs":{"tag:a":1e400}}`, 400, "want one report as JSON"},
			{"an unknown field", `{"backend":"db","speed":1}`, 400, `unknown field "speed"`},
			{"two reports", report(t, 0, nil) + "{}", 400, "more data follows it"},
			{"too large", `{"backend":"` + strings.Repeat("x", 5<<20), 413, "too large"},
			{"null", "null", 400, "backend, zone: both need a name"},
			{"no time", `{"backend":"db","zone":"a"}`, 400,
				"time 0: is missing: send when the report was made, as Unix time such as 9466848"},
			{"the future", report(t, 6, nil), 400, "time 9"},
			{"the past", report(t, -6, nil), 400, "is -6 s from now: check the backend's clock"},
			{"an unknown zone", reportWith(func(r *quota.Report) { r.Zone = "c" }), 400,
				`zone "c": is not declared by the cluster: use one of ["a" "b"]`},
			{"a negative cost", reportWith(func(r *quota.Report) { r.Costs["tenant:acme"] = -1 }), 400,
				"cost of tenant:acme, -1: is invalid: want 0 to"},
			{"a negative target", reportWith(func(r *quota.Report) { r.Load.Target = -1 }), 400,
				"target -1: is invalid: want more than 0"},
			{"an id without a kind", reportWith(func(r *quota.Report) { r.Costs["acme"] = 1 }), 400,
				`id "acme": is invalid: want tenant:NAME or tag:NAME`},
			{"an id of another kind", reportWith(func(r *quota.Report) { r.Costs["cluster"] = 1 }), 400,
				`id "cluster": is invalid`},
		} {
			got := post(k, c.body)
			assert.Equal(t, c.status, got.Code, c.name)
			assert.Contains(t, got.Body.String(), c.want, c.name)
		}

		got := post(k, report(t, 60, func(r *quota.Report) {
			r.Zone, r.Load.Spring, r.Costs = "c", 0, map[quota.ID]float64{"x": -1}
		}))
		all := strings.Split(strings.TrimSpace(got.Body.String()), "\n")
		assert.Len(t, all, 5, "all faults at once: %s", got.Body)
		got = post(k, report(t, 0, func(r *quota.Report) {
			for i := range 10_000 {
				r.Costs[quota.ID(fmt.Sprint("bad", i))] = -1
			}
		}))
		faults := strings.Split(strings.TrimSpace(got.Body.String()), "\n")
		assert.Len(t, faults, 21)
		assert.Equal(t, "and 19980 more", faults[20])

		time.Sleep(2 * time.Second)
		assert.Empty(t, k.Status().Readers, "no refused report counts")
		got = post(k, report(t, 0, nil))
		assert.Equal(t, 200, got.Code, got.Body)
		assert.JSONEq(t, `{"withoutQuota":["tag:unknown"]}`, got.Body.String())
		assert.Equal(t, "application/json", got.Header().Get("Content-Type"))
		time.Sleep(1500 * time.Millisecond)
		status := k.Status()
		require.Len(t, status.Readers, 2)
		want := quota.Reader{Backend: "db", Zone: "a", ID: "tenant:acme", Cost: 8192, Busyness: 2.0 / 3}
		want.Ratio = status.Readers[0].Ratio
		assert.Equal(t, want, status.Readers[0])
		assert.InDelta(t, 8192, status.Decisions[0].Cost, 1e-9)
		assert.NotContains(t, w.log.String(), token[:5])

		time.Sleep(10 * time.Second)
		assert.Empty(t, k.Status().Readers, "a report counts for five seconds")
	})
}

// TestManyIDsInOneReport: the costliest ids are followed, the rest counts as load by others.
func TestManyIDsInOneReport(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		k, stop := w.keeper("k")
		defer func() { stop(); w.wg.Wait() }()
		time.Sleep(1500 * time.Millisecond)
		got := post(k, report(t, 0, func(r *quota.Report) {
			r.Costs = map[quota.ID]float64{"tenant:acme": 1e6}
			for i := range 10_000 {
				r.Costs[quota.ID(fmt.Sprint("tag:", i))] = float64(i + 1)
			}
		}))
		require.Equal(t, 200, got.Code, got.Body)
		var a ratekeeper.Accepted
		require.NoError(t, json.Unmarshal(got.Body.Bytes(), &a))
		require.Len(t, a.WithoutQuota, 20, "the answer names a few")
		assert.Equal(t, quota.ID("tag:0"), a.WithoutQuota[0])
		assert.Equal(t, 9980, a.MoreWithout)
		time.Sleep(1500 * time.Millisecond)
		s := k.Status()
		assert.Equal(t, 9001, s.LeftOut)
		assert.Equal(t, 1000, s.Tracked)
		require.Len(t, s.Readers, 10)
		assert.InDelta(t, 1e6/(1e6+10_000*10_001/2), s.Readers[0].Busyness, 1e-9, "part of the whole cost")
	})
}

// TestNewestReportCounts: the newest report counts, whichever arrives last and at whichever
// process.
func TestNewestReportCounts(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		a, stopA := w.keeper("a")
		b, stopB := w.keeper("b")
		defer func() { stopA(); stopB(); w.wg.Wait() }()
		time.Sleep(1500 * time.Millisecond)
		costs := func(cost float64) func(*quota.Report) {
			return func(r *quota.Report) { r.Costs = map[quota.ID]float64{"tenant:acme": cost} }
		}
		inForce := func() (readers []quota.Reader, replicas int) {
			time.Sleep(1100 * time.Millisecond)
			s, leads, err := ratekeeper.Decided(t.Context(), w.permits, "standalone")
			require.NoError(t, err)
			require.True(t, leads)
			return s.Readers, s.Replicas
		}
		require.JSONEq(t, `{}`, post(a, report(t, -2, costs(8192))).Body.String())
		older := post(a, report(t, -3, costs(4096)))
		assert.JSONEq(t, `{"outdated":true}`, older.Body.String(), "at the same process")
		for i, c := range []struct {
			to    *ratekeeper.Ratekeeper
			ahead float64
			cost  float64
			want  float64
		}{
			{a, -4, 4096, 8192},
			{b, -4.9, 4096, 8192}, // process b has no newer one
			{b, 0, 12288, 12288},
			{a, -1.2, 4096, 12288}, // newer than the last one at process a
			{a, 0, 16384, 16384},
		} {
			require.Equal(t, 200, post(c.to, report(t, c.ahead, costs(c.cost))).Code)
			readers, replicas := inForce()
			require.Len(t, readers, 1)
			assert.InDelta(t, c.want, readers[0].Cost, 1e-9, "report %d", i)
			assert.Equal(t, 1, replicas)
		}
		assert.Equal(t, 200, post(a, report(t, 0, func(r *quota.Report) { r.Backend = "other" })).Code)
		_, replicas := inForce()
		assert.Equal(t, 2, replicas)
	})
}

// slow is a permit store that takes a second for one report.
type slow struct {
	dispatch.PermitStore
	report string // part of its text
}

func (l slow) Publish(ctx context.Context, cluster, replica string, text []byte, ttl time.Duration) error {
	if strings.Contains(string(text), l.report) {
		time.Sleep(time.Second)
	}
	return l.PermitStore.Publish(ctx, cluster, replica, text, ttl)
}

// TestNewerReportOvertakes: a newer report overtakes one that is on its way to the permit store.
func TestNewerReportOvertakes(t *testing.T) {
	virtual(t, func(t *testing.T, w *deployment) {
		ctx, stop := context.WithCancel(t.Context())
		k := &ratekeeper.Ratekeeper{
			Policies: configstore.Source(w.store), Permits: slow{w.permits, "tag:older"},
		}
		w.wg.Go(func() { assert.NoError(t, k.Run(ctx)) })
		time.Sleep(time.Second / 2)
		send := func(ahead float64, id quota.ID) {
			got := post(k, report(t, ahead, func(r *quota.Report) { r.Costs = map[quota.ID]float64{id: 1} }))
			assert.Equal(t, 200, got.Code)
		}
		w.wg.Go(func() { send(-1, "tag:older") })
		time.Sleep(time.Second / 4)
		send(0, "tag:newer")
		time.Sleep(2 * time.Second)
		texts, err := w.permits.Published(t.Context(), permits.UsageOf("standalone"))
		require.NoError(t, err)
		require.Len(t, texts, 1)
		assert.Contains(t, string(texts[0]), "tag:newer")
		stop()
		w.wg.Wait()
	})
}

// failing is a permit store that keeps no records.
type failing struct{ dispatch.PermitStore }

func (failing) Publish(context.Context, string, string, []byte, time.Duration) error {
	return errors.New("the permit store's secrets")
}

func TestReportsWhileAStoreIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &ratekeeper.Ratekeeper{Permits: failing{}, Logger: new(throttletest.Log).Logger()}
		got := post(k, report(t, 0, nil))
		assert.Equal(t, 503, got.Code)
		assert.Equal(t, "policies not read yet: try again\n", got.Body.String())
	})
	virtual(t, func(t *testing.T, w *deployment) {
		k, stop := w.elected("k", nil, failing{w.permits})
		time.Sleep(time.Second / 2)
		got := post(k, report(t, 0, nil))
		stop()
		assert.Equal(t, 503, got.Code)
		assert.Equal(t, "permit store unavailable: try again\n", got.Body.String(), "without details")
		assert.Contains(t, w.log.String(), "cannot store a report")
	})
}

// TestReportsAreBounded: a process keeps reports of 10,000 backends and of 64 MiB in all, and has
// room again when they are old.
func TestReportsAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	virtual(t, func(t *testing.T, w *deployment) {
		k, stop := w.keeper("k")
		defer func() { stop(); w.wg.Wait() }()
		time.Sleep(1500 * time.Millisecond)
		from := func(backend string, ids int) *httptest.ResponseRecorder {
			return post(k, report(t, 0, func(r *quota.Report) {
				r.Backend, r.Costs = backend, map[quota.ID]float64{}
				for i := range ids {
					r.Costs[quota.ID(fmt.Sprintf("tag:%0200d", i))] = 1
				}
			}))
		}
		large := from("large", 6000)
		assert.Equal(t, 413, large.Code, "more than a megabyte")
		for i := range 10_000 {
			require.Equal(t, 200, from(fmt.Sprint("backend-", i), 0).Code)
		}
		more := from("one-more", 0)
		assert.Equal(t, 429, more.Code)
		assert.Contains(t, more.Body.String(), "10000 backends report to this ratekeeper")
		assert.Equal(t, 200, from("backend-7", 1).Code, "a known one")
		time.Sleep(11 * time.Second)
		assert.Equal(t, 200, from("one-more", 0).Code)
		for i := range 67 { // of 0.96 MB each
			require.Equal(t, 200, from(fmt.Sprint("wide-", i), 4500).Code, i)
		}
		for i := 67; ; i++ {
			if got := from(fmt.Sprint("wide-", i), 4500); got.Code != 200 {
				assert.Equal(t, 429, got.Code)
				assert.Contains(t, got.Body.String(), "67108864 bytes")
				assert.Less(t, i, 72)
				break
			}
		}
		assert.Equal(t, 200, from("wide-0", 1).Code)
		assert.Equal(t, 200, from("wide-100", 4000).Code, "which has left room")
	})
}
