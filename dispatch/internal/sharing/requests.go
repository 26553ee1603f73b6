package sharing

import (
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// requests is the record of a share's requests to the permit store. One request is on its way at a
// time.
type requests struct {
	pending bool
	sent    float64 // the last request
	timeout float64 // that it had, seconds; 0 = it cannot be late
	done    float64 // when its answer arrived
	retryAt float64 // no request before
	wokenAt float64 // strict: when the store last said that our turn has come
	dated   bool    // a quota's revision is the store's clock

	sentRev  schedule.Revision // of the limit when the last request was sent, and
	sentRate float64           // its rate, permits a second

	failures  int     // in a row
	conflicts int     // of these, in a row, since other replicas were faster
	failedAt  float64 // when the first of them was noticed
	awaySince float64 // when the request was sent from which on the store has not answered in time

	// Of the last two requests, seconds. The first of all, which may have to connect, does not count.
	rtts      [2]float64
	storeTime float64          // the store's clock less ours, from the last answer; 0 = unknown
	clock     clock            // the last answer that was not late
	unheard   schedule.Answers // outcomes that the store has not been told of

	memory *requestMemory // nil before the first
}

// A requestMemory is the memory of a share's request, which the next one uses again. Most of the
// shares of a process with many topics never send one.
type requestMemory struct {
	request    permits.Request
	allocation permits.Allocate
}

func (r *requests) requestMemory() *requestMemory {
	if r.memory == nil {
		r.memory = new(requestMemory)
	}
	return r.memory
}

// rtt is how long a request takes, seconds; 0 = unknown.
func (r *requests) rtt() float64 { return min(r.rtts[0], r.rtts[1]) }

// storeDown reports whether the permit store is unavailable: a single lost request or reply is no
// outage.
func (r *requests) storeDown() bool { return r.failures > 1 }

// askAgain drops the delay that the next request was given. Modes drop theirs as they see the new
// revision.
func (r *requests) askAgain() {
	if r.failures == 0 {
		r.retryAt = 0
	}
}

// Woken has a strict share ask for its slot now: the permit store says that its turn has come.
func (r *requests) Woken(now float64) { r.retryAt, r.wokenAt = 0, now }

// TellOutcomes notes outcomes that the permit store is to be told of: the next request has them.
func (r *requests) TellOutcomes(to *permits.Request, more schedule.Answers) {
	r.keepOutcomes(more)
	if to.Allocate != nil {
		to.Allocate.Answers = r.unheard
	}
}

func (r *requests) keepOutcomes(more schedule.Answers) {
	r.unheard.OK += more.OK
	r.unheard.Busy += more.Busy
	r.unheard.RetryAfter = max(r.unheard.RetryAfter, more.RetryAfter)
}

// A clock is the permit store's clock in an answer, when its request was sent and when it arrived.
type clock struct{ now, sent, received float64 }

// drift is how much two clocks may differ after a second.
const drift = 5e-4

// bounds returns the earliest and the latest time that the store's clock can show now; 0, 0 before
// the first answer.
func (c clock) bounds(now float64) (low, high float64) {
	if c.received == 0 {
		return 0, 0
	}
	low, high = now-c.received, now-c.sent
	return c.now + low - drift*low, c.now + high + drift*high
}

// still is by how many seconds the store's clock must have gone further than ours for this process
// to have stood still: our clock may have, too, as that of a virtual machine that was suspended. An
// answer that comes so long after its time-out says the same.
const still = 0.1

// stoodStill reports whether this process has stood still since the last answer: the store's clock
// has gone further than ours. Permits allocated before are then too old to be used. (A store's
// clock that was set looks the same, and costs a batch or two.)
func (c clock) stoodStill(store, received float64) bool {
	_, high := c.bounds(received)
	return high > 0 && store > high+still
}
