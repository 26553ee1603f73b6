package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// makeBusy reports busy answers until a busy limit is in force.
func (e *fixture) makeBusy(h *handle) {
	for range 200 {
		e.acquire(h, 1, -1)
		h.reportOutcome(resolve.Busy, 0)
		time.Sleep(10 * ms)
	}
}

// busyLimit is the state of the lane's busy limit.
func busyLimit(h *handle) sharing.Stats {
	for _, l := range h.Stats().Limits {
		if l.Reason == resolve.ReasonBusy {
			return l
		}
	}
	return sharing.Stats{}
}

// TestOutcomes: the first outcome that counts makes a busy limit for all lanes of the subscription.
// Outcomes are sent once, with its next request.
func TestOutcomes(t *testing.T) {
	policies := orders + " busy.outcomes=busy,timeout\n" +
		"quota tenant:acme total=163840000 reserved=163840"
	run(t, 10*ms, policies, func(t *testing.T, e *fixture) {
		a, b := e.open(""), e.open("other")
		a.reportOutcome(resolve.Failed, 0)
		a.reportOutcome(resolve.Ignored, 0)
		assert.Len(t, a.Stats().Limits, 1, "these outcomes do not count")
		a.reportOutcome(resolve.OK, 0)
		e.acquire(a, 1, -1)
		assert.Len(t, a.Stats().Limits, 1, "a healthy system has no limit")
		e.ApplyRates(tenantRate(500), 1)
		reported := 0
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * ms) {
			e.acquire(a, 1, -1)
			a.reportOutcome(resolve.Timeout, 2*time.Second)
			a.reportOutcome(resolve.Busy, time.Second)
			reported += 2
		}
		e.acquire(b, 1, -1)
		assert.Len(t, b.Stats().Limits, 2)
		assert.EqualValues(t, 40, busyLimit(b).Rule.MinRate, "reserved, at the cost known now")
		e.acquireFor(time.Second, a, -1)
		quiet := len(e.store.asked())
		e.acquireFor(time.Second, a, -1)
		told, ok, retry := 0.0, 0.0, 0.0
		for i, r := range e.store.asked() {
			if r.Allocate.Rule.Mode == 0 || i >= quiet {
				assert.Zero(t, r.Allocate.Answers)
				continue
			}
			told += r.Allocate.Answers.Busy
			ok += r.Allocate.Answers.OK
			retry = max(retry, r.Allocate.Answers.RetryAfter)
		}
		assert.EqualValues(t, reported, told)
		assert.EqualValues(t, 1, ok)
		assert.EqualValues(t, 2, retry, "the longest")
	})
}

// TestOutcomeOfClosedLane: outcomes that are reported through a closed lane make no busy limit.
func TestOutcomeOfClosedLane(t *testing.T) {
	run(t, 0, "", func(t *testing.T, e *fixture) {
		a, b := e.open("a"), e.open("b")
		a.Close()
		a.reportOutcome(resolve.Busy, 0)
		assert.Nil(t, b.Lane.Admission())
		b.reportOutcome(resolve.Busy, 0)
		assert.NotNil(t, b.Lane.Admission())
	})
}

// tenantRate is the rate of the tenant's quota, messages a second of 4 KiB each.
func tenantRate(rate float64) quota.Rates {
	rates := map[quota.ID]quota.Rate{"tenant:acme": {Rate: rate, Average: 4096}}
	return quota.Rates{Time: 100, Rates: rates}
}
