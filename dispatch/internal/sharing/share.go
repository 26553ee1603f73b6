package sharing

import (
	"math/rand/v2"
	"reflect"
	"sync/atomic"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// An Env is what the shares of one engine have in common.
type Env struct {
	// These do not change.
	Replica string         // the name of this process in what it publishes
	Process string         // a unique name, by which the permit store wakes this process's callers
	Rand    *rand.Rand     // for jitter and names; to be used with the engine's lock
	Timeout func() float64 // of the permit store's Do, seconds; 0 = it answers at once

	// Serve has the loop step a share's lane at once: it has got a slot of another lane.
	Serve func(s *Share, now float64)

	Replicas atomic.Int64 // of the cluster, when they were last counted; 0 = never

	// The engine's lock guards these.
	Closing bool               // everything goes back to the permit store, and not to another share
	turns   map[string]*turns  // by key
	keeping map[string][]*fair // by key: shares that keep what they hold for a new handle
}

// A Share is one lane's share of one limit in this process: a bucket, and the mode that fills it.
// Callers use the Bucket, and the methods that say so; Engine.mu guards all else. At each step of
// the share the loop calls Mode's Advance, then its Next or Drain, then its WakeAt.
type Share struct {
	Bucket
	taking
	requests // to the permit store

	// These do not change.
	Reason string // why callers wait
	Mode   Sharing
	Paced  bool   // messages are paced by the slots of this limit: its mode is strict
	Holds  bool   // a Grant may give back permits after a Hold: its mode is fair
	Waiter string // strict: the share's name in the schedule's queue
	env    *Env

	Limit       resolve.Limit // Limit.Revision is when its pace or terms last changed
	share       float64       // permits a second for this replica, from the last reply; 0 = unknown
	shareAt     float64       // when the share was last told, or used in an outage
	wantedThen  float64       // permits a second that were wanted when it was told
	keepUntil   float64       // the lane has no handle: what is held goes back then; 0 = it has one
	lifted      bool          // all messages bypass the limit, since the permit store is unavailable
	unavailable atomic.Bool   // the permit store does not answer
	noGroup     atomic.Bool   // groups: this process is in none of the limit's worker groups
	rival       string        // another policy store whose replicas use the limit; "" = none known
	rivalAt     float64       // when the permit store told of it
	allocations int64         // all time
	counted     int64         // permits that TakeUsed has returned, all time

	Logged struct{ Failing, NoGroup bool } // what the engine has in the log; it alone uses this
}

// Apply puts a limit of the same key and mode in force. Its revision moves on only if its pace or
// its terms have changed; moved reports that.
func (s *Share) Apply(limit resolve.Limit) (moved bool) {
	was := s.Limit.Revision
	changed := limit.Pace != s.Limit.Pace || limit.Revision.Epoch != was.Epoch ||
		!reflect.DeepEqual(limit.Groups.Terms, s.Limit.Groups.Terms)
	switch {
	case limit.Reason == resolve.ReasonQuota:
		// The revision is the store's clock, so that of several replicas' rates the one that was
		// found last is in force. Where that clock was not known, the revision is made up, until
		// it is known.
		dated := limit.Revision.Number > 0
		limit.Revision.Number = max(was.Number+1, limit.Revision.Number)
		if !changed && (s.dated || !dated) {
			limit.Revision = was
		} else {
			s.dated = dated
		}
	case !changed:
		limit.Revision = was
	}
	s.Limit = limit
	if limit.Revision != was {
		s.askAgain()
	}
	return limit.Revision != was
}

// Refusing reports whether a caller was refused recently, so that it is worth while to know when it
// may come back.
func (s *Share) Refusing() bool { return s.asked > 0 || s.refused.Load() > 0 }

// Kept reports whether the share keeps what it holds for a new handle.
func (s *Share) Kept() bool { return s.keepUntil > 0 }

// Fits reports whether the share can go on under that limit.
func (s *Share) Fits(limit resolve.Limit) bool {
	return s.Limit.Key == limit.Key && s.Limit.Mode == limit.Mode
}

// Owe charges a debt.
func (s *Share) Owe(debt int64) { s.supply(-debt) }

// TakeDebt takes the debt out of the share, and returns it: another one is to owe it.
func (s *Share) TakeDebt() int64 {
	debt := s.Debt()
	s.supply(debt)
	return debt
}

// Lifted reports whether all messages bypass the limit now, since the permit store is unavailable
// and the policy says so.
func (s *Share) Lifted() bool { return s.lifted }

// FollowOutage lifts the limit when the permit store is unavailable and nothing is held, and ends
// that when the store answers, if its policy says `onOutage: open`. It reports whether that
// has changed.
func (s *Share) FollowOutage() (changed bool) {
	was := s.lifted
	s.lifted = s.storeDown() && s.Limit.OnOutage == policy.OutageOpen && (s.lifted || s.Unspent() == 0)
	return s.lifted != was
}

// Rival is the id of another policy store whose replicas use the limit, too, as the permit store
// last told; "" = there is none, or it has not told lately. The lower rate is in force.
func (s *Share) Rival(now float64) string {
	if now-s.rivalAt > schedule.RivalFor(min(s.rate, s.Limit.Rate)) {
		return ""
	}
	return s.rival
}

// noteRival takes in what an answer says of a rival. It reports whether the rate is to be the one
// in the answer: there is a rival, or the rate is still that of one.
func (s *Share) noteRival(id string, now float64) (rated bool) {
	s.rival, s.rivalAt = id, now
	return (id != "" || s.rate != s.Limit.Rate) && s.sentRev == s.Limit.Revision
}

// Unavailable reports whether the permit store does not answer. Any goroutine may call it.
func (s *Share) Unavailable() bool { return s.unavailable.Load() }

// NoGroup reports whether this process is in none of the limit's worker groups. Any goroutine may
// call it.
func (s *Share) NoGroup() bool { return s.noGroup.Load() }

// FailingFor is for how long requests have failed, in seconds.
func (s *Share) FailingFor(now float64) float64 {
	if s.failures == 0 {
		return 0
	}
	return now - s.failedAt
}

// TakeUsed returns how many permits callers have used since the last call, what shadow mode let
// through included.
func (s *Share) TakeUsed() int64 {
	used := s.put - s.avail.Load() + s.shadow.used()
	n := used - s.counted
	s.counted = used
	return n
}

// Stats are what there is to know of a share now.
type Stats struct {
	resolve.Limit
	Report
	Held        int64 // allocated and not taken
	Debt        int64 // taken and not yet allocated
	Granted     int64 // permits that callers were granted, all time, those that they returned included
	Returned    int64 // permits that callers gave back unused, all time
	Owed        int64 // permits used beyond those granted, all time; later grants pay for them
	Lost        int64 // permits allocated that no caller used in time, all time
	Allocations int64 // all time
	Rival       string
	Shadowed    int64 // messages that passed in shadow mode without a permit, all time
	Bypassed    bool  // nothing is charged now
}

// Stats returns what there is to know of the share.
func (s *Share) Stats(now float64) Stats {
	stats := Stats{
		Limit: s.Limit, Report: Report{Use: s.meter.rate(now)}, Held: s.Unspent(), Debt: s.Debt(),
		Returned: s.returned.Load(), Owed: s.owed.Load(),
		Lost: s.lost + s.wasted.Load(), Allocations: s.allocations, Shadowed: s.shadow.messages.Load(), Rival: s.Rival(now),
	}
	stats.Granted = s.put - s.avail.Load() + stats.Returned - stats.Owed
	s.Mode.Report(&stats.Report)
	return stats
}
