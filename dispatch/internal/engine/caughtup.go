package engine

import (
	"slices"
	"time"
)

// backlogValid is how long a reported backlog counts; an older one is as good as unknown.
const backlogValid = 5 * time.Second

// A backlog is what one handle last reported.
type backlog struct {
	messages int64 // negative = unknown
	at       time.Time
	caughtUp bool
}

// ReportBacklog notes how many messages are still to be read through the handle. Negative means
// unknown.
func (h *Handle) ReportBacklog(messages int64) {
	l := h.Lane
	l.engine.mu.Lock()
	defer l.engine.mu.Unlock()
	threshold := l.caughtUpBacklog
	l.mu.Lock()
	b, open := h.backlog, slices.Contains(l.handles, h)
	if open {
		was := b.caughtUp && time.Since(b.at) < backlogValid
		h.backlog = backlog{
			messages: messages, at: time.Now(),
			caughtUp: messages >= 0 && (messages <= threshold || was && messages-threshold <= threshold),
		}
	}
	l.mu.Unlock()
	if open {
		l.updateCaughtUp(time.Now())
	}
}

// updateCaughtUp decides whether the lane is caught up: all its handles are.
func (l *Lane) updateCaughtUp(now time.Time) {
	l.mu.Lock()
	caughtUp := len(l.handles) > 0
	l.validUntil = now.Add(backlogValid)
	for _, h := range l.handles {
		until := h.backlog.at.Add(backlogValid)
		caughtUp = caughtUp && h.backlog.caughtUp && now.Before(until)
		if until.Before(l.validUntil) {
			l.validUntil = until
		}
	}
	l.mu.Unlock()
	if caughtUp != l.caughtUp {
		l.caughtUp = caughtUp
		l.admit()
		l.engine.touch(l, false) // for the loop to see when the exemption ends
	}
}

// expireCaughtUp ends the exemption of a lane whose reports have become old.
func (l *Lane) expireCaughtUp(now time.Time) {
	if l.caughtUp && !now.Before(l.validUntil) {
		l.updateCaughtUp(now)
	}
}

// backlog is the sum of what the handles reported, and -1 if one of them is unknown. The lane's
// lock is held.
func (l *Lane) backlog(now time.Time) (sum int64) {
	for _, h := range l.handles {
		b := h.backlog
		if b.messages < 0 || now.Sub(b.at) >= backlogValid {
			return -1
		}
		sum += b.messages
	}
	return sum
}
