package dispatch

import "github.com/dispatchthrottle/throttle/policy"

// lend lets a replica go on at its last share while the store is away. A permit of its own comes
// a share's gap after the last allocated one, so that it never exceeds the time that passes.
func (a *account) lend(now float64, w demand) {
	if a.loss != policy.OutageShare {
		return
	}
	if a.groups != nil && (a.share == 0 || !a.groups.terms.MayGoOn(now-a.lostAt)) {
		a.lent = max(a.lent, now)
		return
	}
	gap := 1 / a.lastShare()
	if a.held() > 0 {
		a.lent = max(a.lent, now+gap)
		return
	}
	if w.waiting == 0 && a.asked == 0 {
		a.lent = max(a.lent, now)
		return
	}
	if a.lent > now {
		return
	}
	k := int64((now-a.lent)/gap) + 1
	if most := int64(a.limit.round/gap) + 1; k > most {
		k, a.lent = most, now
	}
	a.supply(k)
	a.spent += k
	a.lent += float64(k) * gap
	if a.groups != nil {
		a.groups.spent = min(a.groups.spent+k, a.groups.before)
	}
}

// lastShare is the share last told. If that was not lately when the store went, others may have it now: it is a hundredth
// of the limit, so that a hundred such replicas at most double it. A replica that was never told one takes the limit
// divided by the number of replicas when they were last counted, or a thousandth of it.
func (a *account) lastShare() float64 {
	switch {
	case a.told > 0 && a.lostAt-a.told <= max(maxTurn, 3/max(a.share, 1/maxTurn)):
		return max(min(a.share, a.limit.rate), min(1/maxTurn, a.limit.rate/1000))
	case a.told > 0:
		return a.rate / 100
	}
	if a.queue != nil {
		if n := a.queue.limiter.replicas.Load(); n > 0 {
			return a.rate / float64(n)
		}
	}
	return a.rate / 1000
}

// maxRepaid is how much of a replica's share is owed after an outage at most, in seconds.
const maxRepaid = 2.0

// repay ends the lending. What was released ahead of its time is owed, and all of it if the store went on for others: they
// were allocated the slots of that time.
func (a *account) repay(now float64, partial bool) {
	owed := a.lent - now
	if share := a.lastShare(); a.loss == policy.OutageShare {
		if partial && a.spent > 0 && a.groups == nil {
			owed += float64(a.spent) / share
		}
		a.supply(-int64(max(0, min(owed, maxRepaid)*share)))
	}
	a.lent = 0
}

// away says that the store is unavailable and nothing allocated is left.
func (a *account) away() bool { return a.outage() && a.held() == 0 }
