package sharing

import (
	"slices"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// A late is what a share in fair mode keeps of late answers. A replica holds the permits of a round
// or two: after two time-outs of a permit store, its callers would have waited for long. So a
// request whose answer takes far longer than usual is given up and sent again. The first one is
// void from that moment on, for it says so. If the answer to the second one is late, too, the
// replica goes on as in an outage until an answer comes.
type late struct {
	lateAt float64 // when the answer to the request on its way is late; 0 = never
	second bool    // the request on its way, or else the next one, is a second one
	given  []givenUp
}

// A givenUp is a request that was given up, and is not answered yet.
type givenUp struct {
	memory  *requestMemory
	sent    float64
	rev     schedule.Revision // of the limit when it was sent
	answers schedule.Answers  // outcomes that it tells
}

// slack is how long an answer may take beyond three times what the last ones took, in seconds: a
// busy machine is late by as much now and then. To a second request it may take secondSlack. The
// batch that runs when a request is sent lasts for a part of that time.
const (
	slack       = 0.04
	secondSlack = 0.06
)

// expect notes when the answer to a request that is sent now is late. A first request is void then.
// Without the store's clock, or if the time-out is sooner, no answer is late.
func (f *fair) expect(now float64, r *schedule.Request) {
	f.lateAt = 0
	f.second = f.second && now-f.cutAt < f.timeout // callers may have been away meanwhile
	usual := 3 * max(f.rtts[0], f.rtts[1])
	if r.NotAfter == 0 || f.failures > 0 || usual == 0 || usual+slack >= f.timeout {
		return
	}
	if f.lateAt = now + usual + secondSlack; !f.second {
		f.lateAt = now + usual + slack
		r.NotAfter = f.lateAt + f.storeTime
	}
}

// hurry gives up the request on its way if the answer is late. If that is the second one, the
// replica goes on at its share.
func (f *fair) hurry(now float64) {
	switch {
	case !f.pending || f.lateAt == 0 || now < f.lateAt:
	case f.second:
		f.lateAt, f.failedAt = 0, now
		f.goOn()
	default:
		f.given = append(f.given, givenUp{f.memory, f.sent, f.sentRev, f.unheard})
		f.memory, f.pending, f.second, f.cutAt = nil, false, true, f.sent
		f.unheard = schedule.Answers{}
	}
}

// settle takes in what an answer says of the permit store, and reports whether the request was
// made. One that came too late, although its answer is not late, met a clock that has stepped: the
// next one goes at once.
func (f *fair) settle(r *permits.Request, done, now float64) bool {
	far := f.second && f.failures == 0 // else the store was away
	if !f.batches.settle(r, done, now) {
		if r.Err == nil && f.failures == 1 && done < f.lateAt {
			f.retryAt = now
		}
		return false
	}
	if far { // the first one took that long, too
		f.rtts[0] = f.rtts[1]
	}
	f.lateAt, f.second = 0, false
	return true
}

// answeredLate takes in the answer to a request that was given up, and reports whether it is one.
// If the request was made all the same, its permits are as good as others.
func (f *fair) answeredLate(r *permits.Request, done float64) bool {
	i := slices.IndexFunc(f.given, func(g givenUp) bool { return &g.memory.request == r })
	if i < 0 {
		return false
	}
	g := f.given[i]
	f.given = slices.Delete(f.given, i, i+1)
	switch {
	case r.Err != nil, r.Late():
		f.keepAnswers(g.answers)
		return true
	case done-g.sent > f.timeout+still: // this process has paused, and all is over
		return true
	}
	f.rtts[0], f.rtts[1] = f.rtts[1], done-g.sent
	reply := &r.Allocate.Reply
	if reply.N == 0 || reply.Carry.Inc != f.carry.Inc || g.rev != f.Limit.Revision {
		return true
	}
	if reply.Carry.Seq > f.carry.Seq {
		f.carry = reply.Carry
	}
	f.hold(reply, g.sent, done)
	return true
}

// Idle reports whether nothing is held or wanted, and no answer is to come.
func (f *fair) Idle() bool { return len(f.given) == 0 && f.batches.Idle() }
