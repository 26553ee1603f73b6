// Package kafkathrottle puts the limits of a dispatch.Limiter in front of a kafka-go Reader.
//
//	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{Brokers: brokers, GroupID: "billing", Topic: "orders"}, lim)
//	m, err := r.FetchMessage(ctx) // comes back when there is a permit for m
//	err = r.CommitMessages(ctx, m)
//
// A message is in memory first and gets its permit then, for its own topic and its exact size: key, value, and
// the keys and values of its headers. What waits is bounded: see [NewReader].
package kafkathrottle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/adapters/internal/turn"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Reader is a kafka.Reader whose messages wait for their permits. Its methods are those of the kafka.Reader, and
// what is not said here is as there. Any number of goroutines may use it at once; they are served one after the
// other, so that no message overtakes another of its partition.
type Reader struct {
	*kafka.Reader

	lim    *dispatch.Limiter // nil: nothing below is used
	config kafka.ReaderConfig
	topics map[string]*topic
	only   *topic // if there is just one
	group  bool
	tagOf  func(*kafka.Message) string // nil: messages have no tags of their own
	ends   *poller

	closing context.Context // ends when Close begins
	close   context.CancelFunc
	once    sync.Once

	era     atomic.Pointer[era]
	target  atomic.Int64 // of the last SetOffset
	waiting atomic.Bool  // for a permit
	held    atomic.Int64 // offset of the message that waits or is kept; -1 = none

	turn  *turn.Turn // of those who use the fields below
	has   bool       // kept is there, and not handed over yet
	kept  kafka.Message
	taken *era      // of the message in hand, or of the last one; nil: there was none
	of    *topic    // that it belongs to
	at    *position // likewise; nil without a group
}

// An era is how long what the kafka.Reader returns continues what it returned before: up to a
// SetOffset, a rebalance (where it can be seen), or Close.
type era struct {
	context.Context
	end context.CancelFunc
}

func newEra(parent context.Context) *era {
	ctx, end := context.WithCancel(parent)
	return &era{ctx, end}
}

// NewReader opens a kafka.Reader whose messages wait for the permits of lim; with a nil lim they do not wait. The
// error is what kafka.NewReader would panic for in an invalid cfg, or the fault of a topic's or subscription's name.
//
// What is read ahead is sized to the limit in force now, and never more than cfg says: QueueCapacity is what the
// limit lets through in 250 ms, at least 1 message, and MaxBytes what it lets through in a second, at least 16 KiB;
// a message counts as 1 KiB where only the other unit is limited. In memory there are at most QueueCapacity
// messages, one more for each partition, and MaxBytes a partition in read buffers. A record batch that is larger
// than MaxBytes still comes whole (Kafka 0.11 and later), so no message is too large. If a limit is set or changed
// later, what is read ahead stays as it was: kafka-go cannot change it.
//
// In a rebalance, a message that waits goes back to the group, which reads it again from what was committed, unless
// cfg has a CommitInterval or a StartOffset of LastOffset: then it is handed over, as with [Wrap].
func NewReader(cfg kafka.ReaderConfig, lim *dispatch.Limiter, opts ...Option) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("kafkathrottle: %w", err)
	}
	r, err := open(cfg, lim, opts)
	if err != nil {
		return nil, err
	}
	if lim != nil {
		r.limitPrefetch(&cfg)
		if r.group && cfg.CommitInterval == 0 && cfg.StartOffset != kafka.LastOffset {
			watchJoins(&cfg, r.moveOn)
		}
	}
	r.start(kafka.NewReader(cfg))
	return r, nil
}

// Wrap puts lim in front of r, which the new Reader owns from now on and closes. What r reads ahead is what it was
// opened with. A rebalance cannot be seen from outside of r: a message that waits is handed over behind it,
// as one that was fetched just before, even if its partition is another reader's by then, which reads it again.
func Wrap(r *kafka.Reader, lim *dispatch.Limiter, opts ...Option) (*Reader, error) {
	w, err := open(r.Config(), lim, opts)
	if err != nil {
		return nil, err
	}
	w.start(r)
	return w, nil
}

// open makes a Reader without its kafka.Reader.
func open(cfg kafka.ReaderConfig, lim *dispatch.Limiter, opts []Option) (*Reader, error) {
	r := &Reader{lim: lim, config: cfg, group: cfg.GroupID != "", turn: turn.New()}
	if lim == nil {
		return r, nil
	}
	o := options{topic: func(name string) string { return policy.Kafka + "://public/default/" + name }, subscription: cfg.GroupID}
	if o.subscription == "" {
		o.subscription = DefaultSubscription
	}
	for _, opt := range opts {
		opt(&o)
	}
	names := cfg.GroupTopics
	if len(names) == 0 {
		names = []string{cfg.Topic}
	}
	r.tagOf = o.tagOf
	r.topics = make(map[string]*topic, len(names))
	for _, name := range names {
		if r.topics[name] != nil {
			continue // named twice
		}
		full, err := policy.ParseTopic(o.topic(name))
		if err != nil {
			r.closeSubscriptions()
			return nil, fmt.Errorf("kafkathrottle: topic %s: %w", name, err)
		}
		sub, err := lim.Subscription(full.String(), o.subscription, o.owner...)
		if err != nil {
			r.closeSubscriptions()
			return nil, fmt.Errorf("kafkathrottle: topic %s: %w", name, err)
		}
		r.topics[name] = newTopic(name, sub)
		r.only = r.topics[name]
	}
	if len(r.topics) > 1 {
		r.only = nil
	}
	r.closing, r.close = context.WithCancel(context.Background())
	r.era.Store(newEra(r.closing))
	r.held.Store(-1)
	return r, nil
}

// start gives an opened Reader its kafka.Reader.
func (r *Reader) start(inner *kafka.Reader) {
	r.Reader = inner
	if r.lim == nil {
		return
	}
	r.config = inner.Config()
	r.ends = joinPoller(r)
}

// FetchMessage returns the next message when there is a permit for it. If ctx ends first, the message is kept for
// the next call, whoever makes it. The error is io.EOF when the Reader has been closed: what was read ahead is
// dropped then, and never committed. It wraps dispatch.ErrClosed when the Limiter has been closed first.
func (r *Reader) FetchMessage(ctx context.Context) (m kafka.Message, err error) {
	if r.lim == nil {
		return r.Reader.FetchMessage(ctx)
	}
	if err = r.turn.Take(ctx, r.closing); errors.Is(err, turn.ErrClosing) {
		return m, io.EOF
	} else if err == nil {
		err = r.next(ctx, &m)
		r.turn.Pass()
	}
	return m, err
}

// next is FetchMessage for whoever has the turn; m is empty if it fails.
func (r *Reader) next(ctx context.Context, m *kafka.Message) (err error) {
	for {
		if r.taken != r.era.Load() {
			if err := r.moved(ctx); err != nil {
				return err
			}
		}
		if r.has {
			*m = r.kept
		} else {
			if *m, err = r.Reader.FetchMessage(ctx); err != nil {
				return err
			}
			r.take(m)
		}
		bytes := size(m)
		sub := r.subscription(m)
		grant, err := sub.AcquireSized(ended, bytes)
		if err != nil {
			if grant, err = r.wait(ctx, sub, m, bytes); errors.Is(err, errMoved) {
				continue
			} else if err != nil {
				*m = kafka.Message{}
				return err
			}
		}
		if r.has {
			r.drop()
		}
		r.at.handOver(m)
		r.of.broker(m.Partition).Read(sub, bytes)
		if grant.InFlight() {
			r.fly(m, grant)
		}
		return nil
	}
}

// subscription is the one whose permits the message in hand needs.
func (r *Reader) subscription(m *kafka.Message) *dispatch.Subscription {
	if r.tagOf == nil {
		return r.of.sub
	}
	return r.of.sub.Tagged(r.tagOf(m))
}

// take notes where a message belongs. An era that began while it was fetched counts as its own:
// whoever drops a message of an ended era must be sure that it is read again.
func (r *Reader) take(m *kafka.Message) {
	t := r.only
	if t == nil {
		t = r.topics[m.Topic]
	}
	if now := r.era.Load(); now != r.taken {
		r.landOthers(now)
		r.taken = now
	}
	r.of = t
	if r.group {
		r.at = t.position(m, r.taken)
	}
	t.notice(m)
}

// errMoved says that FetchMessage has to look again.
var errMoved = errors.New("kafkathrottle: the reader has moved")

// ended makes AcquireSized, which looks at its context only when it has to wait, a try.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// wait waits for the permit of the message in hand when there was none at once, up to the end of ctx or of the
// message's era. Without a permit the message is kept.
func (r *Reader) wait(ctx context.Context, sub *dispatch.Subscription, m *kafka.Message, bytes int64) (dispatch.Grant, error) {
	r.has, r.kept = true, *m
	r.held.Store(m.Offset)
	r.waiting.Store(true)
	defer r.waiting.Store(false)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.taken, cancel)()
	grant, err := sub.AcquireSized(waiting, bytes)
	switch {
	case r.closing.Err() != nil:
		grant.Done(0, 0)
		return grant, io.EOF
	case r.taken.Err() != nil:
		grant.Done(0, 0)
		return grant, errMoved
	case err == nil:
		return grant, nil
	case ctx.Err() != nil:
		return grant, ctx.Err()
	}
	return grant, fmt.Errorf("kafkathrottle: %w", err)
}

// drop forgets the message that is kept.
func (r *Reader) drop() {
	r.has = false
	r.held.Store(-1)
}

// moved begins a new era: it drops the message in hand, if there is one, where the kafka.Reader has dropped what it
// had read ahead with it.
//
// With a group it has done so only when the next generation runs. Before that it still returns messages of the
// generation that has ended: they are read again, and if one that follows the message in hand were committed, that
// would be lost. As soon as a commit loop runs, a commit of nothing returns. If that takes too long, go on: the
// message in hand stays, and FetchMessage tells what keeps the group from running.
func (r *Reader) moved(ctx context.Context) error {
	if r.closing.Err() != nil {
		return io.EOF
	}
	begun := r.taken != nil
	r.taken = r.era.Load()
	switch {
	case !begun:
	case !r.group:
		// The message may be the first of the new position, if it was fetched while SetOffset was at work.
		if r.has && (r.kept.Offset < r.target.Load() || r.Reader.Offset() != r.kept.Offset+1) {
			r.drop()
		}
	default:
		running, cancel := context.WithTimeout(ctx, cmp.Or(r.config.RebalanceTimeout, joinTimeout))
		defer cancel()
		defer context.AfterFunc(r.closing, cancel)()
		err := r.CommitMessages(running)
		switch {
		case r.closing.Err() != nil:
			return io.EOF
		case err == nil:
			r.drop()
			r.landOthers(r.taken)
		case ctx.Err() != nil:
			r.taken = moving // for the next call
			return ctx.Err()
		default:
			r.landOthers(r.taken)
		}
	}
	return nil
}

// moving is the era of what moved has not done with.
var moving = newEra(context.Background())

// joinTimeout is kafka-go's default of how long the members of a group have to join its next generation.
const joinTimeout = 30 * time.Second

// moveOn ends the era.
func (r *Reader) moveOn() { r.era.Swap(newEra(r.closing)).end() }

// ReadMessage is FetchMessage and, with a group, CommitMessages.
func (r *Reader) ReadMessage(ctx context.Context) (kafka.Message, error) {
	m, err := r.FetchMessage(ctx)
	if err != nil {
		return kafka.Message{}, fmt.Errorf("fetching message: %w", err)
	}
	if r.group {
		if err := r.CommitMessages(ctx, m); err != nil {
			return kafka.Message{}, fmt.Errorf("committing message: %w", err)
		}
	}
	return m, nil
}

// Offset returns the offset behind the last message that was handed over, or -1 with a group.
func (r *Reader) Offset() int64 {
	if r.lim != nil && !r.group {
		if held := r.held.Load(); held >= 0 {
			return held
		}
	}
	return r.Reader.Offset()
}

// SetOffset drops the message that waits for its permit, if there is one, and goes on at offset.
func (r *Reader) SetOffset(offset int64) error {
	return r.seek(r.Reader.SetOffset(offset))
}

// SetOffsetAt is SetOffset to the first message that is not older than t.
func (r *Reader) SetOffsetAt(ctx context.Context, t time.Time) error {
	return r.seek(r.Reader.SetOffsetAt(ctx, t))
}

func (r *Reader) seek(err error) error {
	if err == nil && r.lim != nil && !r.group {
		r.target.Store(r.Reader.Offset())
		r.held.Store(-1)
		r.moveOn()
	}
	return err
}

// Close ends what waits, gives back what is allocated for this Reader alone, and closes the kafka.Reader, which takes
// as long as its fetch under way: up to MaxWait. Close the Reader before its Limiter.
func (r *Reader) Close() error {
	if r.lim == nil {
		return r.Reader.Close()
	}
	r.once.Do(func() {
		r.close()
		r.moveOn()
		r.landOthers(nil)
		r.closeSubscriptions()
		r.ends.leave(r)
	})
	return r.Reader.Close()
}

func (r *Reader) closeSubscriptions() {
	for _, t := range r.topics {
		_ = t.sub.Close() // never fails
	}
}

// size is what of a message counts as its bytes.
func size(m *kafka.Message) int64 {
	n := len(m.Key) + len(m.Value)
	for i := range m.Headers {
		n += len(m.Headers[i].Key) + len(m.Headers[i].Value)
	}
	return int64(n)
}

// watchJoins calls joining whenever kafka-go is about to join the group: the generation before has ended by then,
// its last commits included.
func watchJoins(cfg *kafka.ReaderConfig, joining func()) {
	balancers := cfg.GroupBalancers
	if len(balancers) == 0 { // what kafka-go takes then
		balancers = []kafka.GroupBalancer{kafka.RangeGroupBalancer{}, kafka.RoundRobinGroupBalancer{}}
	}
	cfg.GroupBalancers = append([]kafka.GroupBalancer{joinWatch{balancers[0], joining}}, balancers[1:]...)
}

type joinWatch struct {
	kafka.GroupBalancer
	joining func()
}

// UserData is asked for in each request to join.
func (w joinWatch) UserData() ([]byte, error) {
	w.joining()
	return w.GroupBalancer.UserData()
}
