package quotas_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/fleet"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestAccuracyTenants: two tenants share a sink; each of their processes may be the ratekeeper.
func TestAccuracyTenants(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		share(m, newDeployment(t, services.Redis(t)), newSink(t), func(c *consumer, name string) policy.Scope {
			c.Namespace, c.Meter, c.Keeps = name+"/default", true, true
			return policy.TenantScope(name)
		})
	})
}

// TestAccuracyTags: two tags share a sink, which reports to a ratekeeper.
func TestAccuracyTags(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		w, s := newDeployment(t, services.Redis(t)), newSink(t)
		k := w.startKeeper("keeper")
		ctx, cancel := context.WithCancel(t.Context())
		var reporting sync.WaitGroup
		reporting.Go(func() { s.report(ctx, t, k.url, k.token) })
		defer reporting.Wait()
		defer cancel()
		share(m, w, s, func(c *consumer, name string) policy.Scope {
			c.Namespace, c.Tag = "public/default", name
			return policy.TagScope(name)
		})
	})
}

// share runs two ids, a and b, on the sink, with two processes each. A fifth of the sink is
// reserved for each id, and each may use all of it. First, a wants 40 % and b has an endless
// backlog; then both have one; then the capacity of the sink doubles, so that it equals the sum of
// both totals.
func share(m *accuracy.M, w *deployment, s *sink, scopeOf func(c *consumer, name string) policy.Scope) {
	t := w.t
	k := services.Kafka(t)
	quotas := map[policy.Scope]policy.Settings{
		policy.ClusterScope(): policy.QuotaSettings{IgnoreZones: new(int64(0))}, // there is one zone
	}
	var ids []quota.ID
	topics := map[string]string{}
	base := consumer{Brokers: k.Brokers, Group: services.Name(t), Sink: s.url}
	processes := []consumer{}
	for _, name := range []string{"a", "b"} {
		c := base
		scope := scopeOf(&c, name)
		topics[name] = services.Name(t) + "-" + name
		c.ID, c.Topic = quota.ID(scope.String()), topics[name]
		k.CreateTopic(c.Topic, partitions)
		quotas[scope] = policy.Quota{
			Reserved: new(int64(capacity * cost / 5)), Total: new(int64(capacity * cost)),
		}
		ids = append(ids, c.ID)
		for i := range 2 {
			c.Name = fmt.Sprint(name, i)
			processes = append(processes, c)
		}
	}
	w.set(quotas)
	w.produce(k.Brokers, topics["b"], 30_000) // more than b can read in this test
	written, stop := w.producing(k.Brokers, topics["a"], capacity*40/100)
	var running fleet.Fleet
	for i, c := range processes {
		running = append(running, fleet.Start(t, i, "", w.as(consumerEnv, c)))
	}
	defer func() {
		for _, p := range running {
			p.Stop(t)
		}
	}()
	require.Eventually(t, func() bool {
		return len(s.consumers()) == len(processes)
	}, throttletest.Patience, 50*time.Millisecond, "a process has no partition")
	defer w.explain(s, time.Now(), ids)

	const window = 2 * time.Second
	check := func(when string) count {
		const d = 10 * time.Second
		from := time.Now()
		time.Sleep(d)
		c := s.count(from, from.Add(d))
		m.AtLeast(when+": used capacity, %", 100*float64(c.good)/d.Seconds()/capacity, 90)
		m.AtMost(when+": busy answers, %", 100*c.busyShare(), 5)
		for _, id := range ids {
			m.AtLeast(fmt.Sprintf("%s: fewest of %s in any %v, %% of the reserved", when, id, window),
				100*float64(s.fewest(id, window, from, from.Add(d)))/(capacity*window.Seconds()/5), 100)
		}
		return c
	}
	time.Sleep(15 * time.Second)
	caughtUp := func() bool {
		return written.Load()-int64(s.count(time.Time{}, time.Now()).ok[ids[0]]) < capacity/10
	}
	require.Eventually(t, caughtUp, throttletest.Patience, 100*time.Millisecond, "a has not caught up after its start")
	settled := time.Now()
	c := check("a wants 40 %")
	m.Within("what a gets, % of the capacity", 100*float64(c.ok[ids[0]])/10/capacity, 36, 44)
	stop()
	w.produce(k.Brokers, topics["a"], 20_000)
	time.Sleep(8 * time.Second)
	check("both want all")

	s.setCapacity(2 * capacity)
	time.Sleep(10 * time.Second)
	from := time.Now()
	time.Sleep(window)
	regained := float64(s.count(from, from.Add(window)).good) / window.Seconds() / 2 / capacity
	m.AtLeast("used of the doubled capacity after 10 s, %", 100*regained, 95)
	for _, id := range ids { // also while demand and capacity change
		m.AtLeast(fmt.Sprintf("fewest of %s in any %v, %% of the reserved", id, 2*window),
			100*float64(s.fewest(id, 2*window, settled, time.Now()))/(capacity*2*window.Seconds()/5), 50)
	}
}

// explain logs the answers of each second and the ratekeeper's status, if the test has failed.
func (w *deployment) explain(s *sink, from time.Time, ids []quota.ID) {
	if !w.t.Failed() {
		return
	}
	for at := from; at.Before(time.Now()); at = at.Add(time.Second) {
		c := s.count(at, at.Add(time.Second))
		w.t.Logf("%2.0f s: a %3d, b %3d, busy %3d", at.Sub(from).Seconds(), c.ok[ids[0]], c.ok[ids[1]], c.busy)
	}
	w.t.Log(w.admin("quota", "status"))
}

// TestAccuracyTakeover: the leading ratekeeper is killed.
func TestAccuracyTakeover(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		w := newDeployment(t, services.Redis(t))
		first, second, replicas, records := w.pair()
		time.Sleep(2 * time.Second) // until the rate is in force on all replicas
		first.signal(syscall.SIGKILL)
		killed := time.Now()
		at := w.takenOver(records)
		m.AtMost("another leads, s", at.Sub(killed).Seconds(), 10)
		time.Sleep(3 * time.Second)
		m.Within("used meanwhile, %", replicas.Percent("", 100, killed, time.Since(killed)), 90, 110)
		second.signal(syscall.SIGKILL)
		for _, p := range replicas {
			p.Stop(t)
		}
	})
}

// TestAccuracyQuotaSet: two seconds after a quota was set, with 3 % for costs and requests that are
// counted at different times.
func TestAccuracyQuotaSet(t *testing.T) {
	accuracy.Measure(t, func(m *accuracy.M) {
		w := newDeployment(t, services.Redis(t))
		replicas := w.replicas(200)
		keeper := w.startKeeper("keeper")
		w.settled()
		time.Sleep(2 * time.Second)
		before := 200
		for _, rate := range quotaRates {
			const d = 3 * time.Second
			w.setTotal(rate)
			time.Sleep(2 * time.Second)
			from := time.Now()
			time.Sleep(d)
			n := fleet.Between(replicas.Messages(""), from, from.Add(d))
			m.Within(fmt.Sprintf("used 2 s after %d/s became %d/s, messages/s", before, rate), float64(n)/d.Seconds(),
				0.9*float64(rate), 1.03*float64(rate)*(1+0.25/d.Seconds()))
			before = rate
		}
		keeper.signal(syscall.SIGKILL)
		for _, p := range replicas {
			p.Stop(t)
		}
	})
}
