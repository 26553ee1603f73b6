package engine

import (
	"slices"
	"time"
)

// A Handle is one consumer's part in a lane. Handles of the same subscription and owner share the
// lane.
type Handle struct {
	Lane    *Lane
	HoldsUp []string // topics whose messages wait behind its callers; it does not change
	backlog backlog  // guarded by Engine.mu, as is readAhead

	readAhead int64 // messages that its consumer may hold before their permits; 0 = none, or unknown
}

// backlogValid is how long a reported backlog counts; an older one is as good as unknown.
const backlogValid = 5 * time.Second

// A backlog is what one handle last reported.
type backlog struct {
	messages int64 // negative = unknown
	at       time.Time
	caughtUp bool
}

// handles are those of a lane, and whether it is caught up: all of them are. Engine.mu guards them.
type handles struct {
	all              []*Handle
	threshold        int64 // messages; a handle is caught up at this backlog or under
	throttleCaughtUp bool  // limits apply when caught up, too
	caughtUp         bool
	validUntil       time.Time // of caughtUp
	behindSince      time.Time // a known backlog is above the threshold; zero = it is not
}

func (s *handles) has(h *Handle) bool { return slices.Contains(s.all, h) }

func (s *handles) remove(h *Handle) {
	s.all = slices.DeleteFunc(s.all, func(other *Handle) bool { return other == h })
}

// report notes the backlog of a handle.
func (s *handles) report(h *Handle, messages int64, now time.Time) {
	b := &h.backlog
	was := b.caughtUp && now.Sub(b.at) < backlogValid
	*b = backlog{ // up to twice the threshold, in a form that cannot overflow
		messages: messages, at: now,
		caughtUp: messages >= 0 && (messages <= s.threshold || was && messages-s.threshold <= s.threshold),
	}
}

// update decides whether the lane is caught up, and reports whether that has changed.
func (s *handles) update(now time.Time) (changed bool) {
	caughtUp := len(s.all) > 0
	s.validUntil = now.Add(backlogValid)
	for _, h := range s.all {
		until := h.backlog.at.Add(backlogValid)
		caughtUp = caughtUp && h.backlog.caughtUp && now.Before(until)
		if until.Before(s.validUntil) {
			s.validUntil = until
		}
	}
	changed = caughtUp != s.caughtUp
	s.caughtUp = caughtUp
	if caughtUp || len(s.all) == 0 {
		s.behindSince = time.Time{}
	} else if s.behindSince.IsZero() && s.backlog(now) >= 0 {
		s.behindSince = now
	}
	return changed
}

// expired reports whether the lane is caught up by reports that have become old.
func (s *handles) expired(now time.Time) bool { return s.caughtUp && !now.Before(s.validUntil) }

// exempt reports whether limits that exempt who is caught up do not apply.
func (s *handles) exempt() bool { return s.caughtUp && !s.throttleCaughtUp }

// backlog is the sum of what the handles reported, and -1 if one of them is unknown.
func (s *handles) backlog(now time.Time) (sum int64) {
	for _, h := range s.all {
		b := h.backlog
		if b.messages < 0 || now.Sub(b.at) >= backlogValid {
			return -1
		}
		sum += b.messages
	}
	return sum
}

// behind reports whether a known backlog is above the threshold.
func (s *handles) behind(now time.Time) bool { return !s.behindSince.IsZero() && s.backlog(now) >= 0 }

// readAhead is the sum of what the handles reported.
func (s *handles) readAhead() (sum int64) {
	for _, h := range s.all {
		sum += h.readAhead
	}
	return sum
}

// holdsUp are the topics whose messages wait behind the callers, but for their own.
func (s *handles) holdsUp(own string) (topics []string) {
	for _, h := range s.all {
		topics = append(topics, h.HoldsUp...)
	}
	slices.Sort(topics)
	return slices.DeleteFunc(slices.Compact(topics), func(topic string) bool { return topic == own })
}
