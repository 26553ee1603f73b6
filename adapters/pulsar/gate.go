package pulsarthrottle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/adapters/internal/turn"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A gate hands over the messages of a client's consumer or reader, one after the other, when there are permits for
// them. A message comes first and gets its permit then. With a zero-queue consumer, to which nothing is pushed ahead, the
// permit comes first: each Receive of the client asks the broker for one message more.
type gate struct {
	receive   func(context.Context) (pulsar.Message, error) // the client's
	topics    topics
	zeroQueue *topic // of a zero-queue consumer; nil: the client's queue is filled ahead

	closing context.Context // ends when Close begins, or the client closes its own
	close   context.CancelFunc
	closed  context.Context // ends when the client's is closed, so that it says so
	gone    context.CancelFunc

	turn  *turn.Turn // of those who use the fields below
	era   atomic.Pointer[era]
	until until
	kept  pulsar.Message // received, and not handed over
	last  *place         // of the last message
	known map[string]*place

	account *dispatch.Subscription // whose permit the message in hand has, or waits for

	moves sync.Mutex   // of those who move, so that each ends the era in force
	asks  atomic.Int64 // twice the messages that have come, and 1 while the client is asked for one
	held  atomic.Bool  // kept is there
}

// An era is how long a message that was received may be handed over: up to a Seek, or to the end.
type era struct {
	context.Context
	end  context.CancelFunc
	over chan struct{} // closed when what has ended it is done
}

func newEra(parent context.Context) *era {
	ctx, end := context.WithCancel(parent)
	return &era{ctx, end, make(chan struct{})}
}

func (g *gate) open(receive func(context.Context) (pulsar.Message, error)) {
	g.receive = receive
	g.turn = turn.New()
	g.closed, g.gone = context.WithCancel(context.Background())
	g.closing, g.close = context.WithCancel(context.Background())
	g.era.Store(newEra(g.closing))
}

var (
	errMoved   = errors.New("pulsarthrottle: the consumer has moved") // the era has ended: look again
	errClosing = errors.New("pulsarthrottle: closing")
)

// next returns the next message and its permits. If ctx ends first, what was received is kept for the next call.
func (g *gate) next(ctx context.Context) (m pulsar.Message, grant dispatch.Grant, err error) {
	for {
		err := g.turn.Take(ctx, g.closing)
		if errors.Is(err, turn.ErrClosing) {
			return nil, grant, g.ended()
		} else if err != nil {
			return nil, grant, err
		}
		now := g.era.Load()
		m, err = g.obtain(ctx, now, &grant)
		g.turn.Pass()
		switch {
		case err == nil:
			return m, grant, nil
		case errors.Is(err, errMoved):
			g.rest(ctx, now)
		case errors.Is(err, errClosing):
			return nil, grant, g.ended()
		default:
			return nil, grant, err
		}
	}
}

// rest waits until what has ended an era is done.
func (g *gate) rest(ctx context.Context, now *era) {
	select {
	case <-now.over:
	case <-ctx.Done():
	case <-g.closing.Done():
	}
}

// obtain is next for who has the turn, in an era. If it fails, what was received is kept, and grant given back.
func (g *gate) obtain(ctx context.Context, now *era, grant *dispatch.Grant) (m pulsar.Message, err error) {
	waiting := g.until.either(ctx, now)
	switch {
	case now.Err() != nil: // nothing is begun that whoever ended it would not see
		err = errMoved
	case g.kept != nil:
		m = g.kept
		err = g.permit(waiting, m, g.at(m.Topic()), grant)
	case g.zeroQueue != nil:
		g.account = g.zeroQueue.sub
		if *grant, err = g.account.Acquire(waiting, 1); err == nil {
			m, _, err = g.ask(waiting)
		}
	default:
		var p *place
		if m, p, err = g.ask(waiting); err == nil {
			err = g.permit(waiting, m, p, grant)
		}
	}
	switch {
	case now.Err() != nil && g.closing.Err() != nil:
		err = errClosing
	case now.Err() != nil:
		err = errMoved
	case err == nil:
		if g.kept != nil {
			g.drop()
		}
		if g.account.Metered() {
			g.topics.broker.Read(g.account, size(m))
		}
		return m, nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, dispatch.ErrClosed):
		err = fmt.Errorf("pulsarthrottle: %w", dispatch.ErrClosed)
	}
	if m != nil {
		g.keep(m)
	}
	grant.Done(0, 0)
	*grant = dispatch.Grant{}
	return nil, err
}

// at returns where a message of that topic belongs. It costs no lock, as each message asks.
func (g *gate) at(topic string) *place {
	if g.last != nil && g.last.name == topic {
		return g.last
	}
	p := g.known[topic]
	if p == nil {
		p = g.topics.place(topic)
		if g.known == nil {
			g.known = map[string]*place{}
		}
		g.known[topic] = p
	}
	g.last = p
	return p
}

// ask receives the client's next message, notes how far the client is, and returns where the message belongs.
func (g *gate) ask(ctx context.Context) (pulsar.Message, *place, error) {
	g.asks.Add(1)
	m, err := g.receive(ctx)
	if err != nil {
		g.asks.Add(-1)
		return nil, nil, err
	}
	g.asks.Add(1)
	p := g.at(m.Topic())
	if p.topic.watched.Load() {
		p.received(m.ID())
	}
	return m, p, nil
}

// permit waits for the permits of a message.
func (g *gate) permit(ctx context.Context, m pulsar.Message, p *place, grant *dispatch.Grant) (err error) {
	if p.topic.err != nil {
		return p.topic.err
	}
	g.account = g.topics.subscriptionOf(p.topic, m)
	if g.account.Limited() { // else its size need not be known
		*grant, err = g.account.AcquireSized(ctx, size(m))
	}
	return err
}

func (g *gate) keep(m pulsar.Message) {
	g.kept = m
	g.held.Store(true)
}

func (g *gate) drop() {
	g.kept = nil
	g.held.Store(false)
}

// move runs seek, which takes the client elsewhere, while nobody receives. What was received and not handed over is
// dropped, as the client drops what it has in its queue; unless seek fails.
func (g *gate) move(seek func() error) error {
	g.moves.Lock()
	defer g.moves.Unlock()
	now := g.era.Load()
	now.end()
	if err := g.turn.Take(context.Background(), g.closing); err != nil || g.closing.Err() != nil {
		if err == nil {
			g.turn.Pass()
		}
		return g.ended() // a client's consumer that is closed may never return from a Seek
	}
	defer func() {
		g.era.Store(newEra(g.closing))
		g.turn.Pass()
		close(now.over)
	}()
	err := seek()
	if err == nil {
		g.drop()
		g.topics.moved()
	}
	return err
}

// shut ends what waits, and then runs end, which closes the client's. It is called once. A Seek that does not return, as where
// the client was closed under it, is left alone after leaveTimeout.
func (g *gate) shut(end func()) {
	g.close()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if g.turn.Take(ctx, context.Background()) == nil {
		g.drop()
		g.turn.Pass()
	}
	end()
	g.gone()
}

// ended returns what the client says when it is closed.
func (g *gate) ended() error {
	<-g.closed.Done()
	for {
		if _, err := g.receive(context.Background()); err != nil {
			return err
		}
	}
}

// until joins a caller's context and an era. A loop asks with the same context each time, so that the last join is kept.
type until struct {
	done   <-chan struct{} // of the caller's context
	era    *era
	joined context.Context
	stop   func()
}

func (u *until) either(ctx context.Context, now *era) context.Context {
	done := ctx.Done()
	if done == nil {
		return now
	}
	if done != u.done || now != u.era {
		if u.stop != nil {
			u.stop()
		}
		joined, cancel := context.WithCancel(ctx)
		release := context.AfterFunc(now, cancel)
		*u = until{done, now, joined, func() { release(); cancel() }}
	}
	return u.joined
}
