package sharing

import (
	"slices"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// lateAnswers are what a share in fair mode keeps of late answers. A replica holds the permits of a
// round or two: after two time-outs of a permit store, its callers would have waited for long. So a
// request whose answer takes far longer than usual is given up and sent again. The first one is
// void from then on: its NotAfter says so. If the answer to the second one is late, too, the
// replica goes on as in an outage until an answer comes.
type lateAnswers struct {
	*Share
	at      float64 // when the answer to the request on its way is late; 0 = never
	second  bool    // the request on its way, or else the next one, is a second one
	givenUp []givenUp
}

// A givenUp is a request that was given up, and is not answered yet.
type givenUp struct {
	memory   *requestMemory
	sent     float64
	rev      schedule.Revision // of the limit when it was sent
	outcomes schedule.Answers  // that it tells
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
func (l *lateAnswers) expect(now float64, r *schedule.Request) {
	l.at = 0
	l.second = l.second && now-l.awaySince < l.timeout // callers may have been away meanwhile
	usual := 3 * max(l.rtts[0], l.rtts[1])
	if r.NotAfter == 0 || l.failures > 0 || usual == 0 || usual+slack >= l.timeout {
		return
	}
	l.at = now + usual + secondSlack
	if !l.second {
		l.at = now + usual + slack
		r.NotAfter = l.at + l.storeTime
	}
}

// checkLate gives up a first request whose answer is late, so that it is sent again. A second one
// stays on its way; goOn reports that the replica is to go on at its share.
func (l *lateAnswers) checkLate(now float64) (goOn bool) {
	switch {
	case !l.pending || l.at == 0 || now < l.at:
	case l.second:
		l.at, l.failedAt = 0, now
		return true
	default:
		l.givenUp = append(l.givenUp, givenUp{l.memory, l.sent, l.sentRev, l.unheard})
		l.memory, l.pending, l.second, l.awaySince = nil, false, true, l.sent
		l.unheard = schedule.Answers{}
	}
	return false
}

// takeGivenUp returns the request that was given up, if r is one that is not answered yet, and
// forgets it.
func (l *lateAnswers) takeGivenUp(r *permits.Request) *givenUp {
	i := slices.IndexFunc(l.givenUp, func(g givenUp) bool { return &g.memory.request == r })
	if i < 0 {
		return nil
	}
	g := l.givenUp[i]
	l.givenUp = slices.Delete(l.givenUp, i, i+1)
	return &g
}

// idle reports whether no answer to such a request is to come.
func (l *lateAnswers) idle() bool { return len(l.givenUp) == 0 }
