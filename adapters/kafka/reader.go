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
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

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
	ends   *poller

	closing context.Context // ends when Close begins
	close   context.CancelFunc
	once    sync.Once

	era     atomic.Pointer[era]
	waiting atomic.Bool // for a permit

	turn  chan struct{} // holds a value while a goroutine uses the fields below
	has   bool          // message is there, and not handed over yet
	kept  kafka.Message
	of    *topic
	at    *position
	from  int64 // at.next when the message was taken
	taken *era
}

// An era is how long what the kafka.Reader returns continues what it returned before: up to a
// SetOffset, a rebalance (where it can be seen), or Close.
type era struct {
	context.Context
	end context.CancelFunc
}

func newEra() *era {
	ctx, end := context.WithCancel(context.Background())
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
	r := &Reader{lim: lim, config: cfg, group: cfg.GroupID != "", turn: make(chan struct{}, 1)}
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
		sub, err := lim.Subscription(full.String(), o.subscription)
		if err != nil {
			r.closeSubscriptions()
			return nil, fmt.Errorf("kafkathrottle: topic %s: %w", name, err)
		}
		r.topics[name] = newTopic(name, limited{full.String(), o.subscription}, sub)
		r.only = r.topics[name]
	}
	if len(r.topics) > 1 {
		r.only = nil
	}
	r.closing, r.close = context.WithCancel(context.Background())
	r.era.Store(newEra())
	return r, nil
}

// start gives an opened Reader its kafka.Reader.
func (r *Reader) start(inner *kafka.Reader) {
	r.Reader = inner
	if r.lim == nil {
		return
	}
	r.config = inner.Config()
	if !r.group {
		r.only.positions = make([]*position, r.config.Partition+1)
		r.only.positions[r.config.Partition] = &position{partition: r.config.Partition}
		r.position().next.Store(inner.Offset())
	}
	r.ends = joinPoller(r)
}

// position is that of a Reader without a group.
func (r *Reader) position() *position { return r.only.positions[r.config.Partition] }

// FetchMessage returns the next message when there is a permit for it. If ctx ends first, the message is kept for
// the next call, whoever makes it. The error is io.EOF when the Reader has been closed: what was read ahead is
// dropped then, and never committed. It wraps dispatch.ErrClosed when the Limiter has been closed first.
func (r *Reader) FetchMessage(ctx context.Context) (kafka.Message, error) {
	if r.lim == nil {
		return r.Reader.FetchMessage(ctx)
	}
	select {
	case r.turn <- struct{}{}:
	default:
		select {
		case r.turn <- struct{}{}:
		case <-ctx.Done():
			return kafka.Message{}, ctx.Err()
		case <-r.closing.Done():
			return kafka.Message{}, io.EOF
		}
	}
	defer func() { <-r.turn }()
	for {
		if r.taken != nil && r.taken.Err() != nil {
			if err := r.moved(ctx); err != nil {
				return kafka.Message{}, err
			}
		}
		if !r.has {
			m, err := r.Reader.FetchMessage(ctx)
			if err != nil {
				return kafka.Message{}, err
			}
			r.take(m)
		}
		if err := r.permit(ctx); err == nil {
			r.has = false
			return r.kept, nil
		} else if !errors.Is(err, errMoved) {
			return kafka.Message{}, err
		}
	}
}

// take notes the message that is in hand now. An era that began while it was fetched counts as its own:
// whoever drops a message of an ended era must be sure that it is read again.
func (r *Reader) take(m kafka.Message) {
	t := r.only
	if t == nil {
		t = r.topics[m.Topic]
	}
	r.has, r.kept, r.of, r.taken = true, m, t, r.era.Load()
	r.at = t.position(&r.kept, r.taken, r.group)
	r.from = r.at.next.Load()
}

// errMoved says that FetchMessage has to look again.
var errMoved = errors.New("kafkathrottle: the reader has moved")

// ended makes AcquireSized, which looks at its context only when it has to wait, a try.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// permit waits for the permit of the message in hand.
func (r *Reader) permit(ctx context.Context) error {
	bytes := size(&r.kept)
	grant, err := r.of.sub.AcquireSized(ended, bytes)
	if err != nil {
		grant, err = r.wait(ctx, bytes)
	}
	switch {
	case r.taken.Err() != nil:
		grant.Done(0, 0)
		return errMoved
	case err == nil && r.at.next.CompareAndSwap(r.from, r.kept.Offset+1):
		return nil
	case err == nil: // SetOffset is under way
		grant.Done(0, 0)
		r.has = false
		return errMoved
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("kafkathrottle: %w", err)
}

// wait is permit when there was none at once. It ends with ctx or with the message's era.
func (r *Reader) wait(ctx context.Context, bytes int64) (dispatch.Grant, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.taken, cancel)()
	r.waiting.Store(true)
	defer r.waiting.Store(false)
	return r.of.sub.AcquireSized(ctx, bytes)
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
	now := r.era.Load()
	if r.group {
		running, cancel := context.WithTimeout(ctx, joinTimeout)
		defer cancel()
		defer context.AfterFunc(r.closing, cancel)()
		err := r.CommitMessages(running)
		switch {
		case r.closing.Err() != nil:
			return io.EOF
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			r.taken = now
			return nil
		}
	}
	r.has, r.taken = false, now
	return nil
}

// joinTimeout bounds the wait for a group's next generation: kafka-go's default time-out of a rebalance.
const joinTimeout = 30 * time.Second

// moveOn ends the era.
func (r *Reader) moveOn() { r.era.Swap(newEra()).end() }

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
	if r.lim == nil || r.group {
		return r.Reader.Offset()
	}
	return r.position().next.Load()
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
		r.position().next.Store(r.Reader.Offset())
		r.moveOn()
	}
	return err
}

// Close ends what waits, gives back what is booked for this Reader alone, and closes the kafka.Reader, which takes
// as long as its fetch under way: up to MaxWait. Close the Reader before its Limiter.
func (r *Reader) Close() error {
	if r.lim == nil {
		return r.Reader.Close()
	}
	r.once.Do(func() {
		r.close()
		r.moveOn()
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
