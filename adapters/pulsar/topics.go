package pulsarthrottle

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// topics are those that a consumer has messages of; one that it finds later (a pattern's, a retry topic) comes in with
// its first message.
type topics struct {
	lim          *dispatch.Limiter
	subscription string
	log          *slog.Logger
	owner        []dispatch.SubscriptionOption
	tagOf        func(pulsar.Message) string // nil: messages have no tags of their own
	broker       *dispatch.Backend           // that what is read costs

	mu     sync.Mutex
	closed bool
	topics map[string]*topic // by name
	places map[string]*place // by name
}

// A topic is what has limits: all partitions together.
type topic struct {
	name string                 // full, as policies name it
	sub  *dispatch.Subscription // nil: policies cannot name it, nothing is limited
	err  error                  // the Limiter is closed

	watched atomic.Bool  // it has a limit, so that its backlog counts
	batch   atomic.Int64 // messages in the last entry, at least 1: the broker counts entries
}

// A place is how far a consumer is in a partition, or in a topic that has none.
type place struct {
	name  string // as messages have it: with -partition-N
	topic *topic

	mu   sync.Mutex
	next position // of the last message received
	left int64    // messages behind it in its batch
	seen int64    // messages received
	mark mark
}

// A position is where an entry lies in a partition.
type position struct{ permits, entry int64 }

// nowhere is before all.
var nowhere = position{-1, -1}

func positionOf(id pulsar.MessageID) position { return position{id.LedgerID(), id.EntryID()} }

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.permits, q.permits), cmp.Compare(p.entry, q.entry))
}

// fullName completes a topic's name as Pulsar does: orders is persistent://public/default/orders.
func fullName(name string) string {
	if strings.Contains(name, "://") {
		return name
	}
	if !strings.Contains(name, "/") {
		name = "public/default/" + name
	}
	return policy.Persistent + "://" + name
}

// begin says what the topics are opened with. The error is the fault of the broker's name, or dispatch.ErrClosed.
func (ts *topics) begin(lim *dispatch.Limiter, subscription string, o options) (err error) {
	ts.lim, ts.subscription, ts.log, ts.owner, ts.tagOf = lim, subscription, o.log, o.owner, o.tagOf
	if ts.broker, err = lim.Backend(o.broker, o.zone); err != nil {
		return fmt.Errorf("pulsarthrottle: %w", err)
	}
	return nil
}

// subscriptionOf is the one whose permits a message needs.
func (ts *topics) subscriptionOf(t *topic, m pulsar.Message) *dispatch.Subscription {
	if ts.tagOf == nil {
		return t.sub
	}
	return t.sub.Tagged(ts.tagOf(m))
}

// open returns the topic of that full name. The error is the name's fault, or dispatch.ErrClosed.
func (ts *topics) open(name string) (*topic, error) {
	full, err := policy.ParseTopic(name)
	if err != nil {
		return nil, fmt.Errorf("pulsarthrottle: topic %s: %w", name, err)
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed {
		return nil, fmt.Errorf("pulsarthrottle: topic %s: %w", name, dispatch.ErrClosed)
	}
	t := ts.topics[full.String()]
	if t == nil {
		sub, err := ts.lim.Subscription(full.String(), ts.subscription, ts.owner...)
		if err != nil {
			return nil, fmt.Errorf("pulsarthrottle: topic %s: %w", name, err)
		}
		t = &topic{name: full.String(), sub: sub}
		t.watch()
		if ts.topics == nil {
			ts.topics = map[string]*topic{}
		}
		ts.topics[full.String()] = t
	}
	return t, nil
}

// place returns that of a message's topic. A topic that Pulsar allows and policies cannot name is let through, and the log has it.
func (ts *topics) place(name string) *place {
	ts.mu.Lock()
	p := ts.places[name]
	ts.mu.Unlock()
	if p != nil {
		return p
	}
	t, err := ts.open(name)
	if errors.Is(err, dispatch.ErrClosed) {
		return &place{name: name, topic: &topic{name: name, err: err}}
	}
	if err != nil {
		ts.log.Warn("pulsarthrottle: a topic is not limited", "topic", name, "error", err)
		t = &topic{name: name}
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	p = &place{name: name, topic: t, next: nowhere}
	if ts.places == nil {
		ts.places = map[string]*place{}
	}
	ts.places[name] = p
	return p
}

// received moves the place to a message.
func (p *place) received(id pulsar.MessageID) {
	p.topic.batch.Store(int64(max(1, id.BatchSize())))
	at, left := positionOf(id), int64(max(0, id.BatchSize()-1-max(0, id.BatchIdx())))
	p.mu.Lock()
	if order := at.compare(p.next); order > 0 || order == 0 && left < p.left { // not sent again
		p.next, p.left = at, left
	}
	p.seen++
	p.mu.Unlock()
}

// moved forgets where the consumer was.
func (ts *topics) moved() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, p := range ts.places {
		p.mu.Lock()
		p.next, p.left, p.mark = nowhere, 0, mark{}
		p.mu.Unlock()
	}
	for _, t := range ts.topics {
		t.sub.ReportBacklog(-1)
	}
}

// close ends the subscriptions.
func (ts *topics) close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
	for _, t := range ts.topics {
		_ = t.sub.Close() // never fails
	}
}

// size is what of a message counts as its bytes: its payload, its key, and the names and values of its properties.
func size(m pulsar.Message) int64 {
	n := len(m.Payload()) + len(m.Key())
	for k, v := range m.Properties() {
		n += len(k) + len(v)
	}
	return int64(n)
}
