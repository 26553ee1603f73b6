package processes

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// limited returns the URL of an etcd with a policy for the cluster, and what wipes it.
func limited(tb testing.TB, rate int64) (url string, wipe func()) {
	tb.Helper()
	node := services.Etcd(tb)
	url = "etcd://" + node.Endpoint + "/" + services.Name(tb)
	store, err := throttle.OpenPolicies(tb.Context(), url)
	require.NoError(tb, err)
	defer func() { assert.NoError(tb, store.Close()) }()
	_, err = configstore.Edit(tb.Context(), store, configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return s.Set(policy.ClusterScope(), policy.Policy{MessageRate: policy.PerSecond(rate)}), nil
	})
	require.NoError(tb, err)
	return url, func() {
		_, err := node.Client().Delete(tb.Context(), "", clientv3.WithPrefix())
		require.NoError(tb, err)
	}
}

// held is how many processes say that they keep policies which their store has not.
func held(t *testing.T, p *running) (n int) {
	permits, err := throttle.OpenPermits(p.jobs[0].Permits)
	require.NoError(t, err)
	defer func() { assert.NoError(t, permits.Close()) }()
	records, err := permits.Published(t.Context(), p.jobs[0].Cluster)
	require.NoError(t, err)
	for _, text := range records {
		var s dispatch.Stats
		require.NoError(t, json.Unmarshal(text, &s))
		if s.PoliciesHeld {
			n++
		}
	}
	return n
}

// TestWipedPolicies: processes never get more than the limit of an etcd that is wiped meanwhile.
func TestWipedPolicies(t *testing.T) {
	t.Parallel()
	const rate = 1000
	policies, wipe := limited(t, rate)
	p := start(t, services.Patient(services.Redis(t)), 4, throttletest.Patience,
		job{Policies: policies, Max: 1, Tell: true}, nil)
	p.until(100)
	wipe()
	throttletest.Until(t, "all processes keep their policies", func() bool { return held(t, p) == 4 })
	p.until(500)
	p.stop().neverOver(t, rate, slack, 0)
}

// TestAccuracyWipedPolicies: an etcd is wiped under load.
func TestAccuracyWipedPolicies(t *testing.T) {
	t.Parallel()
	accuracy.Measure(t, func(m *accuracy.M) {
		const rate, d, s = 1000, 8 * time.Second, time.Second
		policies, wipe := limited(t, rate)
		p := start(t, services.Redis(t), 4, d, job{Policies: policies, Max: 1}, nil)
		time.Sleep(time.Until(p.jobs[0].Start.Add(3 * s)))
		wipe()
		r := p.wait()
		after := result{}
		for _, e := range r.events {
			if e.at >= s {
				after.events = append(after.events, e)
			}
		}
		m.AtMost("any second after the first, %", percent(after.window(), rate, s), 105)
		m.AtLeast("used after it, %", percent(r.count(-1, 3*s, d), rate, d-3*s), 97)
	})
}
