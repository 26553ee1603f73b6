package ratekeeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
)

const token = "sesame-sesame"

// post sends a report with the right token.
func post(k *ratekeeper.Ratekeeper, body string) *httptest.ResponseRecorder {
	return send(k.Handler(token), http.MethodPost, "Bearer "+token, body)
}

func send(h http.Handler, method, authorization, body string) *httptest.ResponseRecorder {
	w, req := httptest.NewRecorder(), httptest.NewRequest(method, "/reports", strings.NewReader(body))
	req.Header.Set("Authorization", authorization)
	h.ServeHTTP(w, req)
	return w
}

// report is one as JSON, of so many seconds from now.
func report(t *testing.T, ahead float64, change func(*quota.Report)) string {
	t.Helper()
	r := quota.Report{
		Backend: "db", Zone: "a", Load: quota.Load{Queue: 900, Target: 800, Spring: 200},
		Costs: map[quota.ID]float64{"tenant:acme": 8192, "tag:nobody": 4096}, Time: float64(time.Now().UnixMicro())/1e6 + ahead,
	}
	if change != nil {
		change(&r)
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	return string(text)
}

func TestReportsAreTakenOrRefused(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		w.set("cluster", policy.Policy{Zones: "a,b"})
		w.set("tenant:acme", quotaOf(0, 600*quota.Page))
		k, stop := w.keeper("k")
		defer func() { stop(); w.wg.Wait() }()
		time.Sleep(1500 * time.Millisecond)

		h := k.Handler(token)
		for _, c := range []struct {
			name, method, authorization string
			status                      int
			header, value               string
		}{
			{"no token", http.MethodPost, "", 401, "WWW-Authenticate", "Bearer"},
			{"another token", http.MethodPost, "Bearer " + token + "x", 401, "WWW-Authenticate", "Bearer"},
			{"a beginning of it", http.MethodPost, "Bearer " + token[:5], 401, "WWW-Authenticate", "Bearer"},
			{"without Bearer", http.MethodPost, token, 401, "WWW-Authenticate", "Bearer"},
			{"not by POST", http.MethodGet, "Bearer " + token, 405, "Allow", "POST"},
			{"not by POST, no token", http.MethodPut, "", 401, "", ""},
		} {
			got := send(h, c.method, c.authorization, report(t, 0, nil))
			assert.Equal(t, c.status, got.Code, c.name)
			assert.Equal(t, c.value, got.Header().Get(c.header), c.name)
			assert.NotContains(t, got.Body.String(), token[:5], c.name)
		}
		assert.Equal(t, 401, send(k.Handler(""), http.MethodPost, "Bearer ", report(t, 0, nil)).Code, "nobody comes in without a token")

		for _, c := range []struct {
			name, body string
			status     int
			want       string
		}{
			{"no JSON", "{", 400, "no JSON of a report: unexpected EOF"},
			{"nothing", "", 400, "no JSON of a report: EOF"},
			{"a number that is none", `{"costs":{"tag:a":1e400}}`, 400, "no JSON of a report"},
			{"an unknown field", `{"backend":"db","speed":1}`, 400, `unknown field "speed"`},
			{"two of them", report(t, 0, nil) + "{}", 400, "something follows it"},
			{"too large", `{"backend":"` + strings.Repeat("x", 5<<20), 413, "too large"},
			{"null", "null", 400, "backend, zone: both need a name"},
			{"no time", `{"backend":"db","zone":"a"}`, 400, "time 0: is missing: send when the report was made, in seconds of Unix time, such as 9466848"},
			{"the future", report(t, 6, nil), 400, "time 9"},
			{"the past", report(t, -6, nil), 400, "is -6 s from now: check the backend's clock"},
			{"an unknown zone", report(t, 0, func(r *quota.Report) { r.Zone = "c" }), 400, `zone "c": is none of ["a" "b"], which the cluster's policy declares`},
			{"a negative cost", report(t, 0, func(r *quota.Report) { r.Costs["tenant:acme"] = -1 }), 400, "cost of tenant:acme, -1: is no number from 0"},
			{"a negative target", report(t, 0, func(r *quota.Report) { r.Load.Target = -1 }), 400, "target -1: is no number above 0"},
			{"an id that is none", report(t, 0, func(r *quota.Report) { r.Costs["acme"] = 1 }), 400, `id "acme": is no throttling id: write tenant:NAME or tag:NAME`},
			{"an id of no account", report(t, 0, func(r *quota.Report) { r.Costs["cluster"] = 1 }), 400, `id "cluster": is no throttling id`},
		} {
			got := post(k, c.body)
			assert.Equal(t, c.status, got.Code, c.name)
			assert.Contains(t, got.Body.String(), c.want, c.name)
		}

		got := post(k, report(t, 60, func(r *quota.Report) { r.Zone, r.Load.Spring, r.Costs = "c", 0, map[quota.ID]float64{"x": -1} }))
		assert.Len(t, strings.Split(strings.TrimSpace(got.Body.String()), "\n"), 5, "all faults at once: %s", got.Body)
		got = post(k, report(t, 0, func(r *quota.Report) {
			for i := range 10_000 {
				r.Costs[quota.ID(fmt.Sprint("bad", i))] = -1
			}
		}))
		faults := strings.Split(strings.TrimSpace(got.Body.String()), "\n")
		assert.Len(t, faults, 21)
		assert.Equal(t, "and 19980 more", faults[20])

		time.Sleep(2 * time.Second)
		assert.Empty(t, k.Status().Readers, "nothing of all that counts")
		got = post(k, report(t, 0, nil))
		assert.Equal(t, 200, got.Code, got.Body)
		assert.JSONEq(t, `{"withoutQuota":["tag:nobody"]}`, got.Body.String())
		assert.Equal(t, "application/json", got.Header().Get("Content-Type"))
		time.Sleep(1500 * time.Millisecond)
		status := k.Status()
		require.Len(t, status.Readers, 2)
		assert.Equal(t, quota.Reader{Backend: "db", Zone: "a", ID: "tenant:acme", Cost: 8192, Busyness: 2.0 / 3, Ratio: status.Readers[0].Ratio}, status.Readers[0])
		assert.InDelta(t, 8192, status.Decisions[0].Cost, 1e-9)
		assert.NotContains(t, w.logged(), token[:5])

		time.Sleep(10 * time.Second)
		assert.Empty(t, k.Status().Readers, "a report counts for five seconds")
	})
}

// TestManyIDsInOneReport: the costliest are followed, the rest counts as load of others.
func TestManyIDsInOneReport(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
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
		require.Len(t, a.WithoutQuota, 20, "a few are named")
		assert.Equal(t, quota.ID("tag:0"), a.WithoutQuota[0])
		assert.Equal(t, 9980, a.MoreWithout)
		time.Sleep(1500 * time.Millisecond)
		s := k.Status()
		assert.Equal(t, 9001, s.LeftOut)
		assert.Equal(t, 1000, s.Tracked)
		require.Len(t, s.Readers, 10)
		assert.InDelta(t, 1e6/(1e6+10_000*10_001/2), s.Readers[0].Busyness, 1e-9, "of all that the backend bears")
	})
}

// TestNewerReportsStay whichever comes last, and to whichever process.
func TestNewerReportsStay(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
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
		assert.JSONEq(t, `{"outdated":true}`, post(a, report(t, -3, costs(4096))).Body.String(), "by the same way")
		for i, c := range []struct {
			to    *ratekeeper.Ratekeeper
			ahead float64
			cost  float64
			want  float64
		}{
			{a, -4, 4096, 8192},
			{b, -4.9, 4096, 8192}, // another process knows of no newer one
			{b, 0, 12288, 12288},
			{a, -1.2, 4096, 12288}, // newer than the last that came to a
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

// slow is a permit store that one report takes a second to reach.
type slow struct {
	dispatch.PermitStore
	report string // a part of it
}

func (l slow) Publish(ctx context.Context, cluster, replica string, text []byte, ttl time.Duration) error {
	if strings.Contains(string(text), l.report) {
		time.Sleep(time.Second)
	}
	return l.PermitStore.Publish(ctx, cluster, replica, text, ttl)
}

// TestNewerReportsOvertake one that is on its way to the permit store.
func TestNewerReportsOvertake(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		ctx, stop := context.WithCancel(t.Context())
		k := &ratekeeper.Ratekeeper{Policies: configstore.Source(w.store), Permits: slow{w.permits, "tag:older"}}
		w.wg.Go(func() { assert.NoError(t, k.Run(ctx)) })
		time.Sleep(time.Second / 2)
		w.wg.Go(func() {
			assert.Equal(t, 200, post(k, report(t, -1, func(r *quota.Report) { r.Costs = map[quota.ID]float64{"tag:older": 1} })).Code)
		})
		time.Sleep(time.Second / 4)
		assert.Equal(t, 200, post(k, report(t, 0, func(r *quota.Report) { r.Costs = map[quota.ID]float64{"tag:newer": 1} })).Code)
		time.Sleep(2 * time.Second)
		texts, err := w.permits.Published(t.Context(), permits.UsageOf("standalone"))
		require.NoError(t, err)
		require.Len(t, texts, 1)
		assert.Contains(t, string(texts[0]), "tag:newer")
		stop()
		w.wg.Wait()
	})
}

// away is a permit store that keeps nothing.
type away struct{ dispatch.PermitStore }

func (away) Publish(context.Context, string, string, []byte, time.Duration) error {
	return errors.New("the permit store's secrets")
}

func TestReportsWhileSomethingIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, store: configstore.NewMemory()}
		k := &ratekeeper.Ratekeeper{Permits: away{}, Logger: slog.New(slog.NewTextHandler(w, nil))}
		got := post(k, report(t, 0, nil))
		assert.Equal(t, 503, got.Code)
		assert.Equal(t, "the policies have not been read yet: try again\n", got.Body.String())
		require.NoError(t, w.store.Close())
	})
	virtual(t, func(t *testing.T, w *world) {
		ctx, stop := context.WithCancel(t.Context())
		k := &ratekeeper.Ratekeeper{Policies: configstore.Source(w.store), Permits: away{w.permits}, Logger: slog.New(slog.NewTextHandler(w, nil))}
		w.wg.Go(func() { assert.NoError(t, k.Run(ctx)) })
		time.Sleep(time.Second / 2)
		got := post(k, report(t, 0, nil))
		stop()
		assert.Equal(t, 503, got.Code)
		assert.Equal(t, "the permit store does not answer: try again\n", got.Body.String(), "without details")
		assert.Contains(t, w.logged(), "a report could not be kept")
	})
}
