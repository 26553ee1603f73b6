package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// TestStarted counts what each throttling id with a quota has started, until it is taken out.
func TestStarted(t *testing.T) {
	policies := "quota tenant:acme total=163840000\nquota tag:bulk total=163840000\n" + orders + " messageRate=5000"
	run(t, 0, policies, func(t *testing.T, e *fixture) {
		assert.False(t, e.HasQuotas())
		a, b := e.open(""), e.open("bulk")
		assert.True(t, e.HasQuotas())
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
		b.Close()
		assert.Equal(t, map[quota.ID]int64{"tenant:acme": 35, "tag:bulk": 20}, e.Started())
		e.TakeStarted(started)
		assert.Equal(t, map[quota.ID]int64{"tenant:acme": 5}, e.Started())
	})
}

// TestApplyRates puts the rates of quotas in force, at once, and no other limit.
func TestApplyRates(t *testing.T) {
	run(t, 0, "quota tenant:acme total=163840\n"+orders+" messageRate=500", func(t *testing.T, e *fixture) {
		h := e.open("")
		rates := func(rate float64) quota.Rates {
			return quota.Rates{Time: 100, Rates: map[quota.ID]quota.Rate{"tenant:acme": {Rate: rate, Average: 4096}}}
		}
		e.ApplyRates(rates(1.0/3600), 100)
		e.acquire(h, 1, -1)
		c := e.wait(t.Context(), h, 1, -1)
		time.Sleep(10 * time.Second)
		assert.False(t, c.over())
		assert.Equal(t, "quota", h.State().Reason)
		e.ApplyRates(rates(50), 110)
		time.Sleep(50 * ms)
		assert.True(t, c.over(), "the next permit was due in an hour")
		limits := h.State().Limits
		assert.EqualValues(t, 500, limits[0].Rate)
		assert.EqualValues(t, 50, limits[1].Rate)
		assert.Equal(t, resolve.Revision{Identity: resolve.QuotaRevisions, Number: 110_000_000}, limits[1].Revision)
	})
}

// TestOutcomes: the first outcome that counts makes a busy limit, which applies to all
// lanes of the subscription; its answers are told with the next request.
func TestOutcomes(t *testing.T) {
	policies := orders + " busy.outcomes=busy,timeout\nquota tenant:acme total=163840000 reserved=163840"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		a, b := e.open(""), e.open("other")
		a.Lane.ReportOutcome(resolve.Failed, 0)
		a.Lane.ReportOutcome(resolve.Ignored, 0)
		assert.Len(t, a.State().Limits, 1, "those do not count")
		a.Lane.ReportOutcome(resolve.OK, 0)
		e.acquire(a, 1, -1)
		assert.Len(t, a.State().Limits, 1, "a healthy system limits nothing")
		work := func(d time.Duration, report func()) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * ms) {
				e.acquire(a, 1, -1)
				report()
			}
		}
		e.ApplyRates(quota.Rates{Time: 1, Rates: map[quota.ID]quota.Rate{"tenant:acme": {Rate: 500, Average: 4096}}}, 1)
		busy := 0
		work(3*time.Second, func() {
			a.Lane.ReportOutcome(resolve.Timeout, 2*time.Second)
			a.Lane.ReportOutcome(resolve.Busy, time.Second)
			busy += 2
		})
		e.acquire(b, 1, -1)
		states := b.State().Limits
		if assert.Len(t, states, 2) {
			for _, l := range states {
				if l.Reason == resolve.ReasonBusy {
					assert.EqualValues(t, 40, l.Rule.MinRate, "what the quota reserves at the cost now known")
				}
			}
		}
		work(time.Second, func() {})
		told, ok, retry := 0.0, 0.0, 0.0
		for _, r := range e.store.asked() {
			if r.Allocate.Rule.Mode == 0 {
				assert.Zero(t, r.Allocate.Answers)
				continue
			}
			told += r.Allocate.Answers.Busy
			ok += r.Allocate.Answers.OK
			retry = max(retry, r.Allocate.Answers.RetryAfter)
		}
		assert.EqualValues(t, busy, told)
		assert.EqualValues(t, 1, ok)
		assert.EqualValues(t, 2, retry, "the longest")
	})
}
