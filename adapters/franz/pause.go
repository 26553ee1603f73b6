package franzthrottle

import "time"

// A topic is paused while more of its records are kept than it has passed on in aheadFor. kgo
// fetches all topics of a broker in one request, which waits for records: those of a topic that is
// resumed come when that request has ended, which takes no longer than aheadFor (see own).
// Until then, the topic has the records that are kept.
const aheadFor = 250 * time.Millisecond

// A passed counts the records of a topic that were returned, in windows of aheadFor.
type passed struct {
	from         time.Time // when the window started
	last, window int       // records in the window before, and in this one
}

// add counts n records that are returned now.
func (p *passed) add(n int, now time.Time) {
	p.roll(now)
	p.window += n
}

// recent returns how many records were returned in a window of late.
func (p *passed) recent(now time.Time) int {
	p.roll(now)
	return max(p.last, p.window)
}

func (p *passed) roll(now time.Time) {
	switch age := now.Sub(p.from); {
	case age >= 2*aheadFor:
		*p = passed{from: now}
	case age >= aheadFor:
		*p = passed{from: p.from.Add(aheadFor), last: p.window}
	}
}

// pause has kgo pause the topics of which too many records are kept, and resume the others, unless
// the user has paused those.
func (s *shelf) pause(c *Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauseLocked(c)
}

func (s *shelf) pauseLocked(c *Client) {
	var pause, resume []string
	for name, t := range s.topics {
		if t.count == 0 && !t.paused {
			continue
		}
		switch enough := s.ready(t) > t.passed.recent(time.Now()); {
		case enough == t.paused:
		case enough:
			t.paused = true
			pause = append(pause, name)
		case !enough:
			t.paused = false
			if !s.topicsBy[name] {
				resume = append(resume, name)
			}
		}
	}
	if len(pause) > 0 {
		c.Client.PauseFetchTopics(pause...)
	}
	if len(resume) > 0 {
		c.Client.ResumeFetchTopics(resume...)
	}
}
