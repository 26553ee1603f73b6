package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// TestStarted: messages of each throttling id with a quota are counted until they are taken out,
// those of closed lanes too.
func TestStarted(t *testing.T) {
	policies := "quota tenant:acme total=163840000\nquota tag:bulk total=163840000\n" +
		orders + " messageRate=5000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		assert.Empty(t, e.Quotas())
		a, b := e.open(""), e.open("bulk")
		assert.Equal(t, []quota.ID{"tag:bulk", "tenant:acme"}, e.Quotas())
		assert.Equal(t, quota.ID("tenant:acme"), *a.Lane.Quota())
		assert.Equal(t, quota.ID("tag:bulk"), *b.Lane.Quota())
		for range 30 {
			e.acquire(a, 1, -1)
		}
		for range 20 {
			e.acquire(b, 1, -1)
		}
		started := e.Started()
		assert.Equal(t, map[quota.ID]int64{"tenant:acme": 30, "tag:bulk": 20}, started)
		for range 5 {
			e.acquire(a, 1, -1)
		}
		e.TakeStarted(map[quota.ID]int64{"tag:bulk": 20})
		e.acquire(b, 1, -1)
		b.Close()
		assert.Equal(t, map[quota.ID]int64{"tenant:acme": 35, "tag:bulk": 1}, e.Started())
		started["tag:bulk"] = 1
		e.TakeStarted(started)
		assert.Equal(t, map[quota.ID]int64{"tenant:acme": 5}, e.Started())
	})
}

// TestApplyRates: a new rate is in force at once for the quota, and for no other limit.
func TestApplyRates(t *testing.T) {
	policies := "quota tenant:acme total=163840\n" + orders + " messageRate=500"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		h := e.open("")
		e.ApplyRates(tenantRate(1.0/3600), 100)
		e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(13 * time.Second) // a refused caller asks again after ten
		assert.False(t, c.over())
		assert.Equal(t, "quota", h.Stats().Reason)
		e.ApplyRates(tenantRate(50), 110)
		time.Sleep(50 * ms)
		assert.True(t, c.over(), "by the old rate, the next permit was due in an hour")
		limitOf(t, h, "message rate", 500)
		assert.Equal(t, quotaRevision(110), limitOf(t, h, "quota", 50).Revision)
	})
}

func quotaRevision(seconds int64) schedule.Revision {
	return schedule.Revision{Number: seconds * 1000}
}

// TestRatesTimely: the store's clock of the rates is the revision of quotas for a second.
func TestRatesTimely(t *testing.T) {
	run(t, 0, "quota tenant:acme total=163840", func(t *testing.T, e *fixture) {
		e.ApplyRates(tenantRate(50), 100)
		time.Sleep(900 * ms)
		assert.Equal(t, quotaRevision(100), only(e.open("a")).Revision)
		time.Sleep(200 * ms)
		assert.Equal(t, quotaRevision(0), only(e.open("b")).Revision)
	})
}
