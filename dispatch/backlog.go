package dispatch

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

// ReportBacklog tells how many messages this handle's reader has still to read, over all the partitions that
// it owns; negative means unknown. A report counts for five seconds. A subscription is caught up
// when every handle of this process is: at caughtUpBacklog or under (default 100), and until it is over twice that.
func (s *Subscription) ReportBacklog(messages int64) {
	if s == nil {
		return
	}
	s.queue.limiter.mu.Lock()
	defer s.queue.limiter.mu.Unlock()
	s.each(func(of *Subscription) { of.reportBacklog(messages) })
}

func (s *Subscription) reportBacklog(messages int64) {
	q := s.queue
	threshold := q.threshold
	q.mu.Lock()
	b, open := s.backlog, slices.Contains(q.handles, s)
	if open {
		was := b.caughtUp && time.Since(b.at) < backlogValid
		s.backlog = backlog{
			messages: messages, at: time.Now(),
			caughtUp: messages >= 0 && (messages <= threshold || was && messages-threshold <= threshold),
		}
	}
	q.mu.Unlock()
	if open {
		q.judge(time.Now())
	}
}

// judge decides whether the queue is caught up. The caller holds limiter.mu.
func (q *queue) judge(now time.Time) {
	q.mu.Lock()
	caughtUp := len(q.handles) > 0
	q.validUntil = now.Add(backlogValid)
	for _, h := range q.handles {
		b := h.backlog
		until := b.at.Add(backlogValid)
		caughtUp = caughtUp && b.caughtUp && now.Before(until)
		if until.Before(q.validUntil) {
			q.validUntil = until
		}
	}
	q.mu.Unlock()
	if caughtUp != q.caughtUp {
		q.caughtUp = caughtUp
		q.obey()
	}
}

// stale ends the exemption of a queue whose reports have become old. The caller holds limiter.mu.
func (q *queue) stale(now time.Time) {
	if q.caughtUp && !now.Before(q.validUntil) {
		q.judge(now)
	}
}

// backlog is the sum of what the handles reported, and -1 if one of them does not know.
// The caller holds q.mu.
func (q *queue) backlog(now time.Time) (sum int64) {
	for _, h := range q.handles {
		b := h.backlog
		if b.messages < 0 || now.Sub(b.at) >= backlogValid {
			return -1
		}
		sum += b.messages
	}
	return sum
}
