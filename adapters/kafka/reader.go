// Package kafkathrottle applies the limits of a dispatch.Limiter to a kafka-go Reader.
//
//	cfg := kafka.ReaderConfig{Brokers: brokers, GroupID: "billing", Topic: "orders"}
//	r, err := kafkathrottle.NewReader(cfg, lim)
//	m, err := r.FetchMessage(ctx) // returns when there is a permit for m
//	err = r.CommitMessages(ctx, m)
//
// The Reader fetches a message first and then waits for its permit, for the message's own topic
// and its exact size: the bytes of its key, its value, and the keys and values of its headers.
// The messages in memory are bounded: see [NewReader].
package kafkathrottle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/adapters/internal/generation"
	"github.com/dispatchthrottle/throttle/adapters/internal/inflight"
	"github.com/dispatchthrottle/throttle/adapters/internal/receiver"
	"github.com/dispatchthrottle/throttle/adapters/internal/recent"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A Reader is a kafka.Reader whose messages wait for their permits. It has the methods of a
// kafka.Reader, which behave as kafka-go documents unless noted here. Any number of goroutines may
// use it at once; they are served one after the other, so that the messages of a partition keep
// their order.
type Reader struct {
	*kafka.Reader

	lim    *dispatch.Limiter  // nil limits nothing
	config kafka.ReaderConfig // see Config
	topics map[string]*topic
	only   *topic // the Reader's topic, if it has one topic
	group  bool
	tagOf  func(*kafka.Message) string // nil: messages have no tags of their own
	leave  func()                      // ends the polls of the Kafka cluster for its backlogs
	once   sync.Once                   // of Close

	closed    context.Context // ends when the kafka.Reader is closed
	setClosed context.CancelFunc

	receiver receiver.Receiver[kafka.Message]
	unread   unread
	inFlight *inflight.Messages[partition, int64] // by offset
	recent   recent.Grants[record]
	sought   atomic.Int64 // the offset of the last seek
	held     atomic.Int64 // the offset of the kept message; -1 = none

	// The generation in which the Reader reads: a new one starts with each join of the group and
	// each seek. nil before the first FetchMessage. Guarded by the receiver's lock, as are the
	// fields below.
	generation *generation.Generation

	// Of the last message that was fetched.
	topic    *topic
	position *position // nil without a group
}

// A partition names one partition of a topic.
type partition struct {
	topic string
	id    int
}

// NewReader opens a kafka.Reader whose messages wait for permits of lim. With a nil lim they do
// not wait. The error is the fault of cfg for which kafka.NewReader would panic, or the fault of
// a topic's or subscription's name.
//
// NewReader sizes what is read ahead to the limit in force, and to at most what cfg says:
// QueueCapacity to the messages of 250 ms, at least 1; MaxBytes to the bytes of one second, at
// least 16 KiB. Where only one unit is limited, a message counts as 1 KiB. The Reader holds at
// most QueueCapacity messages, one more for each partition, and MaxBytes of read buffer for each
// partition. A record batch larger than MaxBytes still comes whole (Kafka 0.11 and later), so
// that no message is too large to read. kafka-go cannot change these sizes later: they stay as
// they are when a limit is set or changed.
//
// When a rebalance ends the generation of the group, a message that waits for its permit is
// dropped, and read again from the committed offset. With a CommitInterval, or a StartOffset of
// LastOffset, the Reader returns it instead, as with [Wrap].
func NewReader(cfg kafka.ReaderConfig, lim *dispatch.Limiter, opts ...Option) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("kafkathrottle: %w", err)
	}
	r, err := open(cfg, lim, opts)
	if err != nil {
		return nil, err
	}
	withDefaults(&cfg)
	given := cfg
	if lim != nil {
		r.limitPrefetch(&cfg)
		if r.group && cfg.CommitInterval == 0 && cfg.StartOffset != kafka.LastOffset {
			observeJoins(&cfg, r.receiver.Next)
		}
	}
	r.start(kafka.NewReader(cfg), given)
	return r, nil
}

// Wrap applies the limits of lim to r. The new Reader owns r and closes it. What is read ahead
// stays as r was opened. The new Reader cannot see rebalances: a message that waits for its
// permit is returned after a rebalance too, as one that was fetched just before it, even if
// another consumer owns its partition by then and reads it again.
func Wrap(r *kafka.Reader, lim *dispatch.Limiter, opts ...Option) (*Reader, error) {
	w, err := open(r.Config(), lim, opts)
	if err != nil {
		return nil, err
	}
	w.start(r, r.Config())
	return w, nil
}

// open returns a Reader without its kafka.Reader.
func open(cfg kafka.ReaderConfig, lim *dispatch.Limiter, opts []Option) (*Reader, error) {
	r := &Reader{lim: lim, config: cfg, group: cfg.GroupID != ""}
	if lim == nil {
		return r, nil
	}
	o := newOptions(cfg, opts)
	r.tagOf = o.tagOf
	names := cfg.GroupTopics
	if len(names) == 0 {
		names = []string{cfg.Topic}
	}
	full, err := o.fullNames(names)
	if err != nil {
		return nil, err
	}
	owner := slices.Clone(o.owner)
	if len(names) > 1 {
		owner = append(owner, dispatch.WithHoldsUp(full...))
	}
	r.topics = make(map[string]*topic, len(names))
	for i, name := range names {
		if r.topics[name] != nil {
			continue // named twice
		}
		sub, err := lim.Subscription(full[i], o.subscription, owner...)
		if err != nil {
			r.closeSubscriptions()
			return nil, fmt.Errorf("kafkathrottle: topic %s: %w", name, err)
		}
		r.topics[name] = newTopic(name, sub)
		r.only = r.topics[name]
	}
	if len(r.topics) > 1 {
		r.only = nil
		r.warnOfSharedQueue()
	}
	r.receiver.Open()
	r.inFlight = inflight.New[partition](cmp.Compare[int64])
	r.held.Store(-1)
	return r, nil
}

// start gives an opened Reader its kafka.Reader.
func (r *Reader) start(inner *kafka.Reader, given kafka.ReaderConfig) {
	r.Reader, r.config = inner, inner.Config()
	r.config.GroupBalancers = given.GroupBalancers
	r.config.QueueCapacity, r.config.MaxBytes = given.QueueCapacity, given.MaxBytes
	if r.lim == nil {
		return
	}
	for _, t := range r.topics {
		t.sub.ReportReadAhead(int64(inner.Config().QueueCapacity) + 1)
	}
	r.closed, r.setClosed = context.WithCancel(context.Background())
	r.leave = joinCluster(r)
}

// FetchMessage returns the next message when there is a permit for it. If ctx ends first, the
// message is kept, and the next call returns it. After Close the error is io.EOF: what was read
// ahead is dropped, and never committed. If the Limiter has been closed, the error wraps
// dispatch.ErrClosed.
func (r *Reader) FetchMessage(ctx context.Context) (m kafka.Message, err error) {
	if r.lim == nil {
		return r.Reader.FetchMessage(ctx)
	}
	if !r.receiver.TryLock() {
		if err = r.receiver.Lock(ctx); err != nil {
			return m, closedIsEOF(err)
		}
	}
	if read := r.unread.next(r.receiver.Closing()); read != nil {
		r.receiver.Unlock()
		return read.message, nil
	}
	// A message to which no limit applies is copied once, without an allocation. So m must not
	// escape: its address is passed only to methods that do not keep it.
	for {
		if r.generation != r.receiver.Current() {
			if err = r.begin(ctx); err != nil {
				break
			}
		}
		if r.receiver.Keeps() {
			m = r.receiver.Kept()
		} else if m, err = r.Reader.FetchMessage(ctx); err != nil {
			break
		} else {
			r.received(&m)
		}
		if r.receiver.Keeps() || r.limited() { // acquire drops the kept message, limited or not
			if err = r.acquire(ctx, &m); errors.Is(err, receiver.ErrMoved) {
				continue
			} else if err != nil {
				break
			}
		}
		r.position.handOver(&m)
		break
	}
	r.receiver.Unlock()
	if err != nil {
		return kafka.Message{}, closedIsEOF(err) // m may be kept for the next call
	}
	return m, nil
}

// closedIsEOF returns io.EOF, kafka-go's error after Close, for a call that Close ended.
func closedIsEOF(err error) error {
	if errors.Is(err, receiver.ErrClosing) {
		return io.EOF
	}
	return err
}

// warnOfSharedQueue logs that the Reader's topics have different limits, and hold each other up.
func (r *Reader) warnOfSharedQueue() {
	var first []string
	different := false
	for _, t := range r.topics {
		limits := limitsOf(t.sub.Stats())
		different = different || first != nil && !slices.Equal(first, limits)
		first = limits
	}
	const warning = "kafkathrottle: a Reader of topics with different limits: a message that waits " +
		"for its topic's limit holds up those of all topics: open a Reader for each topic"
	if different && (r.config.ErrorLogger != nil || r.config.Logger != nil) {
		r.logf("%s", warning)
	} else if different {
		slog.Warn(warning, "topics", slices.Sorted(maps.Keys(r.topics)))
	}
}

// limitsOf names what may hold up messages of a subscription. It is never nil.
func limitsOf(s dispatch.SubscriptionStats) []string {
	limits := []string{}
	for _, l := range s.Limits {
		if !l.Shadow {
			limits = append(limits, l.Key)
		}
	}
	if s.MaxInFlight > 0 {
		limits = append(limits, s.Topic+": messages in flight")
	}
	if s.Paused {
		limits = append(limits, s.Topic+": paused")
	}
	return limits
}

// begin moves to the current generation. After a rebalance it waits until the group runs, and
// drops the kept message.
func (r *Reader) begin(ctx context.Context) error {
	if r.receiver.Closing().Err() != nil {
		return receiver.ErrClosing
	}
	now := r.receiver.Current()
	if r.generation != nil {
		if r.group {
			if err := r.afterRebalance(ctx); err != nil {
				return err
			}
		} else {
			r.afterSeek()
		}
	}
	r.generation = now
	return nil
}

// received notes where a message belongs that was fetched just now. If the generation changed
// during the fetch, the message counts as one of the new generation: as one of the old it would be
// dropped, and perhaps not read again.
func (r *Reader) received(m *kafka.Message) {
	t := r.only
	if t == nil {
		t = r.topics[m.Topic]
	}
	r.topic = t
	if now := r.receiver.Current(); now != r.generation {
		r.inFlight.SettleAll()
		r.generation = now
	}
	if r.group {
		r.position = t.position(m, r.generation)
	}
	t.noticeBacklog(m)
}

// limited reports whether the message in hand may need a permit, or costs its broker something.
func (r *Reader) limited() bool {
	return r.tagOf != nil || r.topic.sub.Limited() || r.topic.leaders.known()
}

// acquire waits for the permit of the message in hand, which is kept as long as it has none. The
// error is receiver.ErrMoved if the generation has ended.
func (r *Reader) acquire(ctx context.Context, m *kafka.Message) error {
	sub := r.topic.sub
	if r.tagOf != nil {
		sub = sub.Tagged(r.tagOf(new(*m)))
	}
	bytes := size(m)
	grant, ok := receiver.TryAcquire(sub, bytes)
	if !ok {
		if !r.receiver.Keeps() {
			r.keep(m)
		}
		var err error
		grant, err = r.receiver.Acquire(ctx, r.generation, sub, bytes)
		if errors.Is(err, dispatch.ErrClosed) {
			return fmt.Errorf("kafkathrottle: %w", err)
		} else if err != nil {
			return err
		}
	}
	if r.receiver.Keeps() {
		r.drop()
	}
	r.topic.leaders.backend(m.Partition).Read(sub, bytes)
	if grant.InFlight() {
		r.track(m, bytes, grant)
		grant = dispatch.Grant{}
	}
	r.recent.Add(record{partition{m.Topic, m.Partition}, m.Offset}, grant)
	return nil
}

// keep keeps the message in hand for the next call.
func (r *Reader) keep(m *kafka.Message) {
	r.receiver.Keep(*m)
	r.held.Store(m.Offset)
}

// drop forgets the message that is kept.
func (r *Reader) drop() {
	r.receiver.Drop()
	r.held.Store(-1)
}

// Config returns what kafka-go's does, but for what NewReader changes, which is as it was given:
// another Reader may be opened with it. r.Reader.Config has what is in force.
func (r *Reader) Config() kafka.ReaderConfig { return r.config }

// Close ends the calls that wait: they return io.EOF. A message that waits for its permit is
// dropped; it was never committed. Close returns the permits allocated for this Reader alone, and
// closes the kafka.Reader, which waits for its fetch under way, up to MaxWait. Commits then end,
// see CommitMessages. Close the Reader before its Limiter.
func (r *Reader) Close() error {
	if r.lim == nil {
		return r.Reader.Close()
	}
	r.once.Do(func() {
		r.receiver.Close()
		r.inFlight.SettleAll()
		r.closeSubscriptions()
		r.leave()
	})
	defer r.unread.close()
	defer r.setClosed()
	return r.Reader.Close()
}

func (r *Reader) closeSubscriptions() {
	for _, t := range r.topics {
		_ = t.sub.Close() // never fails
	}
}
