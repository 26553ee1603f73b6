package franzthrottle

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/adapters/internal/inflight"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A shelf has the records that were polled and not returned yet, and what is known of their topics.
type shelf struct {
	returned atomic.Bool // fetches were returned since the last AllowRebalance; see handOver

	mu       sync.Mutex // guards the fields below
	topics   map[string]*topic
	order    []*topic             // in which they have their turns
	waiting  func()               // ends the wait of the poll that is served; nil: it does not wait
	topicsBy map[string]bool      // topics that the user has paused
	partsBy  map[partition]bool   // likewise partitions
	inFlight *inFlightByPartition // records that were returned, where a policy has a maxInFlight
	recent   recent
	waiters  sync.WaitGroup
}

type inFlightByPartition = inflight.Messages[partition, int64]

// A partition names one partition of a topic.
type partition struct {
	topic string
	id    int32
}

// A topic is one that the client reads.
type topic struct {
	name      string // Kafka's
	sub       *dispatch.Subscription
	err       error   // why its records cannot be returned
	kept      []batch // each of a partition, in the order of its records
	count     int     // records in kept
	passed    passed
	paused    bool          // by the shelf; see pause
	waiter    *waiter       // for the first records that are kept; nil: none waits
	owed      time.Duration // how long polls wait for its next turn, since it has missed one
	servedAt  time.Time
	positions map[int32]*position
	owned     map[int32]bool // by the group's assignment
	leaders   leaders
	changes   int   // of positions and of what is owned
	reported  int64 // the last backlog that sub was told; -1 = unknown
}

// A batch has records of one partition.
type batch struct {
	topicID [16]byte
	kgo.FetchPartition
}

func (s *shelf) init() {
	s.topics = map[string]*topic{}
	s.topicsBy, s.partsBy = map[string]bool{}, map[partition]bool{}
	s.inFlight = inflight.New[partition](func(a, b int64) int { return int(min(1, max(-1, a-b))) })
}

// wake ends the wait of the poll that is served, so that it looks again.
func (s *shelf) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked()
}

func (s *shelf) wakeLocked() {
	if s.waiting != nil {
		s.waiting()
	}
}

// keeps reports whether records are kept that may be returned.
func (c *Client) keeps() bool {
	s := &c.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.order, func(t *topic) bool { return s.ready(t) > 0 })
}

// sorts reports whether a poll has to tell topics apart: records are kept, or may have to be.
func (c *Client) sorts() bool {
	s := &c.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.topics {
		if t.count > 0 || t.err != nil || c.limited(t) {
			return true
		}
	}
	return false
}

// put keeps records behind those of their partition. The caller holds s.mu.
func (t *topic) put(id [16]byte, p kgo.FetchPartition) {
	t.kept = append(t.kept, batch{id, p})
	t.count += len(p.Records)
}

// pausedByUser reports whether records of a partition may not be returned. The caller holds s.mu.
func (s *shelf) pausedByUser(t *topic, id int32) bool {
	return s.topicsBy[t.name] || len(s.partsBy) > 0 && s.partsBy[partition{t.name, id}]
}

// ready returns how many of the records of a topic that are kept may be returned. The caller holds
// s.mu.
func (s *shelf) ready(t *topic) int {
	if len(s.topicsBy) == 0 && len(s.partsBy) == 0 {
		return t.count
	}
	n := 0
	for i := range t.kept {
		if !s.pausedByUser(t, t.kept[i].Partition) {
			n += len(t.kept[i].Records)
		}
	}
	return n
}

// drop drops the records of partitions that are kept, and forgets where the Client is in them.
func (s *shelf) drop(in func(topic string, id int32) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropKept(in)
	for name, t := range s.topics {
		for id := range t.positions {
			if in(name, id) {
				delete(t.positions, id)
				t.changes++
			}
		}
	}
	s.inFlight.SettleThrough(1<<62, func(p partition) bool { return in(p.topic, p.id) })
}

// dropKept drops the records of partitions that are kept. The caller holds s.mu.
func (s *shelf) dropKept(in func(topic string, id int32) bool) {
	for name, t := range s.topics {
		before := len(t.kept)
		t.kept = slices.DeleteFunc(t.kept, func(b batch) bool {
			if !in(name, b.Partition) {
				return false
			}
			t.count -= len(b.Records)
			return true
		})
		if len(t.kept) < before {
			t.abandon() // others are first now
			t.owed = 0
		}
	}
	s.wakeLocked()
}

func everything(string, int32) bool { return true }

// within returns a function that reports whether a partition is one of those.
func within(partitions map[string][]int32) func(string, int32) bool {
	return func(topic string, id int32) bool { return slices.Contains(partitions[topic], id) }
}

// own notes which partitions the group has assigned, or taken away.
func (s *shelf) own(c *Client, partitions map[string][]int32, owns bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, ids := range partitions {
		t := c.topic(name)
		for _, id := range ids {
			if owns {
				t.owned[id] = true
			} else {
				delete(t.owned, id)
			}
		}
		t.changes++
		t.report(-1)
	}
}

// close drops all records and closes the subscriptions.
func (s *shelf) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight.SettleAll()
	for _, t := range s.topics {
		t.kept, t.count = nil, 0
		_ = t.sub.Close() // never fails
	}
}

// pauseTopics has kgo pause topics for the user.
func (s *shelf) pauseTopics(cl *kgo.Client, topics []string) (paused []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range topics {
		s.topicsBy[name] = true
	}
	if len(topics) > 0 {
		cl.PauseFetchTopics(topics...)
	}
	s.wakeLocked() // a waiter of theirs is to end
	for name := range s.topicsBy {
		paused = append(paused, name)
	}
	slices.Sort(paused)
	return paused
}

// resumeTopics has kgo resume topics for the user, but for those of which records wait.
func (s *shelf) resumeTopics(cl *kgo.Client, topics []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var resumed []string
	for _, name := range topics {
		delete(s.topicsBy, name)
		if t := s.topics[name]; t == nil || !t.paused {
			resumed = append(resumed, name)
		}
	}
	cl.ResumeFetchTopics(resumed...)
	s.wakeLocked()
}

// pausePartitions has kgo pause or resume partitions for the user, and notes which are paused then.
func (s *shelf) pausePartitions(change func() map[string][]int32) map[string][]int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	paused := change()
	clear(s.partsBy)
	for name, ids := range paused {
		for _, id := range ids {
			s.partsBy[partition{name, id}] = true
		}
	}
	s.wakeLocked()
	return paused
}
