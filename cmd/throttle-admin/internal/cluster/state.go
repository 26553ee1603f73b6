// Package cluster follows one cluster as its operators look at it: the topics with limits, how hard
// each is throttled, and why.
package cluster

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// A State is what the replicas of a cluster have published lately. It is a function of their status
// records and of the times at which these came; its owner guards it.
type State struct {
	replicas map[string]*replica
	topics   map[string]*topic
	whole    bool      // each Tick has all topics
	ticks    int       // so far
	ticked   int64     // Unix seconds, of the last Tick
	gap      int64     // likewise, of the last before a gap
	kept     time.Time // when tracks were last added and dropped
	memory   int       // bytes of all points then

	aggregates map[string]*Aggregate // by key, of the last Tick
}

// NewState returns a State that knows no replica.
func NewState() *State {
	return &State{replicas: map[string]*replica{}, topics: map[string]*topic{}}
}

// A replica is a process with a Limiter.
type replica struct {
	last  Record           // without its subscriptions
	read  time.Time        // when a record of it was read last
	gone  time.Time        // since when there is no record; zero = there is one
	parts map[partID]*part // see also groups

	counted *topic // whose row counts it already
}

// keepStale is how long a replica is shown that has published nothing more.
const keepStale = 10 * time.Minute

// keepAbsent is how long a subscription is shown that a replica does not publish any more.
const keepAbsent = time.Minute

// A topic is one with limits.
type topic struct {
	groups []*group // by subscription and owner
	row    Row      // of the last Tick
	turn   int      // of 0 to turns-1
	tracks tracks
	viewed time.Time // when its points were last asked for
	idle   time.Time // since when it has no groups; zero = it has some

	contributions []contribution // to limits of several topics, of the last Tick
}

// A group has the parts that all replicas have of a subscription's messages with one owner.
type group struct {
	subscription, owner string
	parts               []*part
	estimate            estimate
}

// Add takes over a status record that was read at now.
func (st *State) Add(s Record, now time.Time) {
	r := st.replicas[s.Replica]
	known := r != nil
	if !known {
		r = &replica{}
		st.replicas[s.Replica] = r
	}
	r.gone, r.read = time.Time{}, now
	if known && s.Time == r.last.Time {
		return // it has been read before
	}
	parts := make(map[partID]*part, len(s.Subscriptions))
	ahead := s.ahead(now)
	for _, sub := range s.Subscriptions {
		if sub.BehindSince > 0 {
			sub.BehindSince -= ahead
		}
		id := partID{sub.Topic, sub.Subscription, sub.Owner}
		p := r.parts[id]
		if parts[id] != nil {
			continue // of another tag: they differ in what a record does not say
		}
		if p == nil {
			p = st.newPart(id, r, sub, s.Time)
		} else {
			p.group.estimate.addWaits(p.update(sub, s.Time), now)
		}
		parts[id] = p
	}
	for id, p := range r.parts {
		if parts[id] != nil {
			continue
		}
		if p.miss(s.Time, s.More > 0); s.Time-p.absent > keepAbsent.Milliseconds() {
			st.forget(p, now)
		} else {
			parts[id] = p
		}
	}
	s.Subscriptions = nil
	r.last, r.parts = s, parts
}

// Present says at now which replicas have a status record. The others are stale, and forgotten
// after keepStale.
func (st *State) Present(names []string, now time.Time) {
	present := make(map[string]bool, len(names))
	for _, name := range names {
		present[name] = true
	}
	for name, r := range st.replicas {
		switch {
		case present[name]:
			r.gone = time.Time{}
		case r.gone.IsZero():
			r.gone = now
		case now.Sub(r.gone) > keepStale:
			for _, p := range r.parts {
				st.forget(p, now)
			}
			delete(st.replicas, name)
		}
	}
}

// Tick brings the rows and points of topics to now, and limits of several topics: of the topics on
// view, and of a tenth of the others if there are many. It is to be called after Add and Present,
// once a second, and only if the records of now could be read: what is as old as before is no new
// point.
func (st *State) Tick(now time.Time, onView map[string]bool) {
	st.ticks++
	st.noteGap(now.Unix())
	for name, t := range st.topics {
		if st.whole || len(st.topics) <= eachTime || t.turn == st.ticks%turns || t.row.Topic == "" || onView[name] {
			t.look(name, now)
			t.contribute()
			t.tracks.add(&t.row, now, st.gap)
		}
	}
	st.aggregates = st.sumUp()
	if now.Sub(st.kept) >= keepEvery {
		st.kept = now
		st.keep(now)
	}
}

// longestGap is the time, in seconds, after which what was between two Ticks is unknown.
const longestGap = 15

// noteGap notes a gap between the last Tick and one at now, in Unix seconds.
func (st *State) noteGap(now int64) {
	switch {
	case now < st.ticked: // the clock was set back
		st.gap = 0
	case st.ticked != 0 && now-st.ticked > longestGap:
		st.gap = st.ticked
	}
	st.ticked = now
}

const (
	eachTime = 1000 // topics of which each has a new row at each Tick
	turns    = 10   // calls of Tick in which each of more has one
)

// The bounds of the points that are kept.
const (
	keepEvery = 10 * time.Second
	busiest   = 500 // topics, by the used part of the limit, with a point each ten seconds
	fineFor   = 10 * time.Minute
	maxMemory = 63 << 20 // bytes of all points; those of quotas take the rest of 64 MiB
	maxTopics = 100_000  // of more, idle ones are forgotten at once
)

// keep begins and drops tracks: all topics have a coarse one, the busiest a finer one, and those on
// view lately the finest. If all points together exceed maxMemory, tracks are dropped, the finest
// of a topic last. Topics that have been idle for an hour are forgotten.
func (st *State) keep(now time.Time) {
	all := make([]*topic, 0, len(st.topics))
	for name, t := range st.topics {
		if !t.idle.IsZero() && (now.Sub(t.idle) > hour*time.Second || len(st.topics) > maxTopics) {
			delete(st.topics, name)
			continue
		}
		all = append(all, t)
	}
	viewed := func(t *topic) bool { return now.Sub(t.viewed) < fineFor }
	slices.SortFunc(all, func(a, b *topic) int {
		return cmp.Or(falling(a.row.used(), b.row.used(), 1), cmp.Compare(a.row.Topic, b.row.Topic))
	})
	for i, t := range all {
		t.tracks.keep(fine, viewed(t), now)
		t.tracks.keep(middle, i < busiest || i < busiest*11/10 && t.tracks[middle] != nil, now)
		t.tracks.keep(coarse, true, now)
	}
	left := maxMemory
	for _, first := range []bool{true, false} { // those on view are the last to lose points
		for _, t := range all {
			if viewed(t) != first {
				continue
			}
			for kind := coarse; kind <= fine && t.tracks.bytes() > left; kind++ {
				t.tracks.keep(kind, false, now)
			}
			left -= t.tracks.bytes()
		}
	}
	st.memory = maxMemory - left
}

// newPart adds the part that a first record has to its group.
func (st *State) newPart(id partID, r *replica, s subscription, at int64) *part {
	t := st.topics[id.topic]
	if t == nil {
		t = &topic{turn: len(st.topics) % turns}
		st.topics[id.topic] = t
	}
	i, found := slices.BinarySearchFunc(t.groups, id, func(g *group, id partID) int {
		return cmp.Or(strings.Compare(g.subscription, id.subscription), strings.Compare(g.owner, id.owner))
	})
	if !found {
		t.groups = slices.Insert(t.groups, i, &group{subscription: id.subscription, owner: id.owner})
	}
	g := t.groups[i]
	p := newPart(t, g, r, s, at)
	g.parts, t.idle = append(g.parts, p), time.Time{}
	return p
}

// forget removes a part.
func (st *State) forget(p *part, now time.Time) {
	t, g := p.topic, p.group
	if g.parts = slices.DeleteFunc(g.parts, func(other *part) bool { return other == p }); len(g.parts) > 0 {
		return
	}
	if t.groups = slices.DeleteFunc(t.groups, func(other *group) bool { return other == g }); len(t.groups) == 0 {
		t.idle = now
	}
}

// Points returns the points of a topic after a time, in Unix seconds. For the next ten minutes, the
// topic gets one each second.
func (st *State) Points(name string, since int64, now time.Time) Points {
	t := st.topics[name]
	if t == nil {
		return Points{}
	}
	t.viewed = now
	t.tracks.keep(fine, true, now)
	return t.tracks.since(since, now)
}

// opened returns the row of a topic with its operands, and the limits that it has with others.
func (st *State) opened(name string, t *topic) Row {
	row := t.row
	for _, c := range t.contributions {
		if a := st.aggregates[c.shown.Key]; a != nil {
			row.Aggregates = append(row.Aggregates, *a)
		}
	}
	row.Subscriptions = slices.Clone(row.Subscriptions)
	most := max(1, min(maxOperands, maxTopicOperands/max(1, len(row.Subscriptions))))
	for i := range row.Subscriptions {
		if s := &row.Subscriptions[i]; i < len(t.groups) && t.groups[i].subscription == s.Subscription && t.groups[i].owner == s.Owner {
			s.Operands = t.groups[i].operands(s.key, most, reportPartitions(name))
		}
	}
	row.Subscriptions = row.hardest()
	return row
}

// size is about how much work the record of a replica is, in subscriptions.
func (st *State) size(name string) int {
	const request = 20
	if r := st.replicas[name]; r != nil {
		return request + len(r.parts)
	}
	return request
}

// longestUnread returns the replicas that have one of these topics, those first whose records were
// read longest ago.
func (st *State) longestUnread(topics map[string]time.Time) (names []string) {
	read := map[string]time.Time{}
	for topic := range topics {
		if t := st.topics[topic]; t != nil {
			for _, g := range t.groups {
				for _, p := range g.parts {
					read[p.replica.last.Replica] = p.replica.read
				}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(read), func(a, b string) int { return read[a].Compare(read[b]) })
}
