package pulsarthrottle

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// topics are the topics of a consumer's messages. A topic that the client finds later, by its
// pattern or as a retry topic, is added with its first message.
type topics struct {
	lim          *dispatch.Limiter
	subscription string
	log          *slog.Logger
	owner        []dispatch.SubscriptionOption
	tagOf        func(pulsar.Message) string // nil: messages have no tags of their own
	broker       *dispatch.Backend           // the backend that reading costs

	watched  atomic.Bool  // a topic has a limit, so that messages are counted
	received atomic.Int64 // messages of all topics, while watched

	mu     sync.Mutex
	closed bool
	topics map[string]*topic // by name
	places map[string]*place // by name
}

// A topic is what has limits: all partitions together.
type topic struct {
	name string                 // its full name in policies
	sub  *dispatch.Subscription // nil: policies cannot name the topic, so it has no limit
	err  error                  // the Limiter is closed

	named  bool // by the options: it is never forgotten; guarded by topics.mu
	places int  // of the topic; likewise

	watched atomic.Bool  // it has a limit, so that its backlog counts
	batch   atomic.Int64 // messages in the last entry, at least 1: the broker counts entries
}

// init sets what topics are opened with. The error is the fault of the broker's name, or
// dispatch.ErrClosed.
func (ts *topics) init(lim *dispatch.Limiter, subscription string, o options) (err error) {
	ts.lim, ts.subscription, ts.log, ts.owner, ts.tagOf = lim, subscription, o.log, o.owner, o.tagOf
	ts.topics, ts.places = map[string]*topic{}, map[string]*place{}
	if ts.broker, err = lim.Backend(o.broker, o.zone); err != nil {
		return fmt.Errorf("pulsarthrottle: %w", err)
	}
	return nil
}

// fullName completes the name of a topic as Pulsar does: orders is
// persistent://public/default/orders.
func fullName(name string) string {
	if strings.Contains(name, "://") {
		return name
	}
	if !strings.Contains(name, "/") {
		name = "public/default/" + name
	}
	return policy.Persistent + "://" + name
}

// open returns the topic with a full name, which the options have. The error is the fault of the
// name, or dispatch.ErrClosed.
func (ts *topics) open(name string) (*topic, error) {
	t, err := ts.find(name)
	if err == nil {
		ts.mu.Lock()
		t.named = true
		ts.mu.Unlock()
	}
	return t, err
}

// find returns the topic with a full name, which it opens if it is not known.
func (ts *topics) find(name string) (*topic, error) {
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
		if t.watch() {
			ts.watched.Store(true)
		}
		ts.topics[full.String()] = t
	}
	return t, nil
}

// watch finds out whether the topic has a limit, so that its backlog counts. A non-persistent topic
// stores nothing and has no backlog: its consumers have never caught up.
func (t *topic) watch() bool {
	limited := t.sub != nil && !t.nonPersistent() && len(t.sub.Stats().Limits) > 0
	t.watched.Store(limited)
	return limited
}

func (t *topic) nonPersistent() bool {
	return strings.HasPrefix(t.name, policy.NonPersistent+"://")
}

// watch finds out whether a topic has a limit. A consumer whose topics are not known yet may have
// such a topic.
func (ts *topics) watch() bool {
	all := ts.all()
	watched := len(all) == 0
	for _, t := range all {
		watched = t.watch() || watched
	}
	ts.watched.Store(watched)
	return watched
}

// all returns the topics that are known.
func (ts *topics) all() (all []*topic) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.topics {
		all = append(all, t)
	}
	return all
}

// subscriptionOf returns the subscription whose permits a message needs.
func (ts *topics) subscriptionOf(t *topic, m pulsar.Message) *dispatch.Subscription {
	if ts.tagOf == nil {
		return t.sub
	}
	return t.sub.Tagged(ts.tagOf(m))
}

// place returns the place of messages of a topic. A topic that Pulsar allows and policies cannot
// name has no limit, which is logged.
func (ts *topics) place(name string) *place {
	ts.mu.Lock()
	p := ts.places[name]
	ts.mu.Unlock()
	if p != nil {
		return p
	}
	t, err := ts.find(name)
	if errors.Is(err, dispatch.ErrClosed) {
		return &place{name: name, topic: &topic{name: name, err: err}}
	}
	if err != nil {
		ts.log.Warn("pulsarthrottle: a topic has no limit, since policies cannot name it",
			"topic", name, "error", err)
		t = &topic{name: name}
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if p = ts.places[name]; p == nil { // else the poller was faster
		p = &place{name: name, topic: t, last: beforeAll}
		ts.places[name] = p
		t.places++
	}
	return p
}

// forget forgets a place, and its topic with the last one. A new message opens them again.
func (ts *topics) forget(p *place) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if p.topic.named || ts.places[p.name] != p {
		return
	}
	delete(ts.places, p.name)
	if p.topic.places--; p.topic.places == 0 {
		delete(ts.topics, p.topic.name)
		_ = p.topic.sub.Close() // never fails
	}
}

// forgetPlaces makes the places and the backlogs unknown, after a seek.
func (ts *topics) forgetPlaces() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, p := range ts.places {
		p.forget()
	}
	for _, t := range ts.topics {
		t.sub.ReportBacklog(-1)
	}
}

// close closes the subscriptions.
func (ts *topics) close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
	for _, t := range ts.topics {
		_ = t.sub.Close() // never fails
	}
}

// isPattern reports whether options open a consumer of the topics that match a pattern.
func isPattern(options pulsar.ConsumerOptions) bool {
	return options.Topic == "" && len(options.Topics) == 0 && options.TopicsPattern != ""
}

// hasPattern reports whether c is the client's consumer of a pattern, whose type is not exported.
// It is the only consumer of the client with a regular expression: TestClientTypes fails if that
// changes.
func hasPattern(c pulsar.Consumer) bool {
	t := reflect.TypeOf(c)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	for field := range t.Fields() {
		if field.Type == reflect.TypeFor[*regexp.Regexp]() {
			return true
		}
	}
	return false
}
