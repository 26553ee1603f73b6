package franzthrottle

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// take puts the records of kgo's fetches on the shelf, all of them or those that may need permits,
// and returns the rest, which is returned by the poll. The fetches come back as they are if that is
// all of them.
func (c *Client) take(fetches kgo.Fetches, all bool) (out kgo.Fetches) {
	s := &c.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := false
	for i := range fetches {
		for j := range fetches[i].Topics {
			if ft := &fetches[i].Topics[j]; ft.Topic != "" { // else it is an error of the poll
				kept = c.takes(ft, all) || kept
			}
		}
	}
	if !kept {
		if fetches.Empty() && fetches.Err() == nil {
			return nil
		}
		return fetches
	}
	for _, f := range fetches {
		f.Topics = slices.DeleteFunc(f.Topics, func(ft kgo.FetchTopic) bool {
			return !slices.ContainsFunc(ft.Partitions, func(p kgo.FetchPartition) bool {
				return len(p.Records) > 0 || p.Err != nil
			})
		})
		if len(f.Topics) > 0 {
			out = append(out, f)
		}
	}
	return out
}

// takes leaves in ft what the poll returns, and keeps the rest. It reports whether it has kept
// something.
func (c *Client) takes(ft *kgo.FetchTopic, all bool) (kept bool) {
	t := c.topic(ft.Topic)
	for i := range ft.Partitions {
		t.polled(&ft.Partitions[i])
	}
	t.noticeBacklog(ft, c.settings.committed)
	if !all && t.count == 0 && t.err == nil && !c.limited(t) {
		for i := range ft.Partitions {
			t.returned(ft.Partitions[i].Partition, ft.Partitions[i].Records)
		}
		return false
	}
	left := ft.Partitions[:0]
	for _, p := range ft.Partitions {
		if len(p.Records) > 0 {
			t.put(ft.TopicID, p)
			kept = true
			p.Err = cmp.Or(p.Err, t.err)
		}
		if p.Err != nil { // it is told at once
			p.Records = nil
			left = append(left, p)
		}
	}
	ft.Partitions = left
	if kept && t.paused { // a callback has resumed it
		c.Client.PauseFetchTopics(t.name)
	}
	return kept
}

// limited reports whether records of a topic may need permits, or cost their broker something.
func (c *Client) limited(t *topic) bool {
	return c.options.tagOf != nil || t.sub.Limited() || t.leaders.known()
}

// admit returns up to max of the records that are kept, or any number if max is 0: those for which
// there are permits now. Topics have their turns: first come those that have missed one, and the
// next poll starts with the first that had none. A waiter waits for the permits of each topic that
// has records left. Without inLine there is none for a topic whose records are all that is
// returned: the next poll waits itself.
func (c *Client) admit(max int, inLine bool) (out kgo.Fetches) {
	s := &c.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owedFirst()
	var served, refused []*topic
	for range s.order {
		if atMost(max, out) < 0 {
			break
		}
		t := s.order[0]
		s.order = append(s.order[1:], t)
		before := len(out)
		var ok bool
		if out, ok = s.admitTopic(c, t, max, out); !ok {
			refused = append(refused, t)
		}
		if len(out) > before {
			served = append(served, t)
		}
	}
	for _, t := range refused {
		if own := len(served) == 1 && served[0] == t; t.waiter == nil && (inLine || !own) {
			s.waitFor(c, t, max)
		}
	}
	return out
}

// admitTopic adds the records of a topic for which there are permits now to fetches, which have up
// to max. It returns false if there are more records than permits. The caller holds s.mu.
func (s *shelf) admitTopic(c *Client, t *topic, max int, out kgo.Fetches) (_ kgo.Fetches, ok bool) {
	if errors.Is(t.err, dispatch.ErrClosed) && s.ready(t) > 0 && len(out) == 0 {
		return kgo.NewErrFetch(t.err), true
	}
	for {
		left := atMost(max, out)
		if left < 0 {
			return out, true
		}
		sub, n := s.next(c, t, left)
		if n == 0 {
			return out, true
		}
		grant, err := t.permits(sub, n)
		switch {
		case errors.Is(err, dispatch.ErrClosed):
			t.owed = 0
			if len(out) == 0 { // records come first
				out = kgo.NewErrFetch(topicError(t.name, err))
			}
			return out, true
		case err != nil: // none is there
			return out, false
		}
		out = s.hand(c, out, t, sub, n, grant)
	}
}

// permits returns permits for n records: those for which a waiter has waited, or what is there now.
// The error says that there are none. The caller holds the shelf's mu.
func (t *topic) permits(sub *dispatch.Subscription, n int) (dispatch.Grant, error) {
	switch w := t.waiter; {
	case w == nil:
	case w.sub == sub && !w.ended:
		return dispatch.Grant{}, ended.Err()
	case w.sub == sub && !w.grant.Expired():
		t.waiter = nil
		w.stop()
		return w.grant, w.err
	default: // other records are first now, or the poll comes too late
		if w.ended && w.sub == sub {
			t.missed(w)
		}
		t.abandon()
	}
	return sub.Acquire(ended, n)
}

// next returns whose permits the next records of a topic that are kept need, and how many they are:
// up to max, or any number if that is 0. The caller holds s.mu.
func (s *shelf) next(c *Client, t *topic, max int) (sub *dispatch.Subscription, n int) {
	if t.count == 0 || t.err != nil {
		return nil, 0
	}
	sub, n = t.sub, s.ready(t)
	if tagOf := c.options.tagOf; tagOf != nil && n > 0 {
		n = 0
		records := t.kept[s.firstReady(t)].Records
		tag := tagOf(records[0])
		for n < len(records) && tagOf(records[n]) == tag {
			n++
		}
		sub = sub.Tagged(tag)
	}
	if max > 0 {
		n = min(n, max)
	}
	return sub, n
}

// firstReady returns the first batch of a topic that the user has not paused. The caller holds
// s.mu.
func (s *shelf) firstReady(t *topic) int {
	return slices.IndexFunc(t.kept, func(b batch) bool { return !s.pausedByUser(t, b.Partition) })
}

// hand adds the next n records of a topic that are kept to fetches, or as many as the grant has
// permits for, and settles the grant. The caller holds s.mu.
func (s *shelf) hand(
	c *Client, out kgo.Fetches, t *topic, sub *dispatch.Subscription, n int, grant dispatch.Grant,
) kgo.Fetches {
	n = min(n, grant.N())
	t.owed, t.servedAt = 0, time.Now()
	t.passed.add(n, t.servedAt)
	for n > 0 {
		i := s.firstReady(t)
		b := &t.kept[i]
		k := min(n, len(b.Records))
		p := b.FetchPartition
		p.Err = nil // it was told
		p.Records, b.Records = b.Records[:k:k], b.Records[k:]
		n -= k
		t.count -= k
		t.returned(p.Partition, p.Records)
		bytes := int64(0)
		for _, r := range p.Records {
			bytes += size(r)
		}
		s.settle(c, t, sub, p.Records, bytes, grant.Split(k, bytes))
		out = addTo(out, t.name, b.topicID, p)
		if len(b.Records) == 0 {
			t.kept = slices.Delete(t.kept, i, i+1)
		}
	}
	grant.Done(0, 0)
	return out
}

// addTo adds records of a partition to fetches. As in kgo, a poll has each partition once: its
// caller may work on several at once.
func addTo(out kgo.Fetches, topic string, id [16]byte, p kgo.FetchPartition) kgo.Fetches {
	if k := len(out) - 1; k >= 0 {
		if last := &out[k].Topics[0]; last.Topic == topic && last.TopicID == id {
			same := func(had kgo.FetchPartition) bool { return had.Partition == p.Partition }
			if i := slices.IndexFunc(last.Partitions, same); i >= 0 {
				p.Records = append(last.Partitions[i].Records, p.Records...)
				last.Partitions[i] = p
				return out
			}
			last.Partitions = append(last.Partitions, p)
			return out
		}
	}
	ft := kgo.FetchTopic{Topic: topic, TopicID: id, Partitions: []kgo.FetchPartition{p}}
	return append(out, kgo.Fetch{Topics: []kgo.FetchTopic{ft}})
}
