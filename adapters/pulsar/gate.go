package pulsarthrottle

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A gate hands over the messages of a client's consumer or reader, one after the other, when there are permits for
// them. A message comes first and gets its permit then; but where nothing is pushed ahead (see request) the permit
// comes first.
type gate struct {
	receive func(context.Context) (pulsar.Message, error) // the client's
	topics  topics
	request *request // nil: the client's queue is filled ahead

	closing context.Context // ends when Close begins
	close   context.CancelFunc
	closed  chan struct{} // closed when the client's has been closed

	turn  chan struct{} // holds a value while somebody uses the fields below
	era   atomic.Pointer[era]
	until until
	kept  pulsar.Message // received, and not handed over yet
	last  *place         // of kept, or of the last message

	asks atomic.Int64 // odd while the client is asked for a message
	held atomic.Bool  // kept is there
}

// An era is how long a message that was received may be handed over: up to a Seek, or to the end.
type era struct {
	context.Context
	end context.CancelFunc
}

func newEra(parent context.Context) *era {
	ctx, end := context.WithCancel(parent)
	return &era{ctx, end}
}

func (g *gate) open(receive func(context.Context) (pulsar.Message, error)) {
	g.receive = receive
	g.turn = make(chan struct{}, 1)
	g.closed = make(chan struct{})
	g.closing, g.close = context.WithCancel(context.Background())
	g.era.Store(newEra(g.closing))
}

// next returns the next message and its permits. If ctx ends first, what was received is kept for the next call.
func (g *gate) next(ctx context.Context) (pulsar.Message, dispatch.Grant, error) {
	for {
		if err := g.take(ctx); err != nil {
			return nil, dispatch.Grant{}, err
		}
		m, grant, err := g.obtain(ctx)
		g.pass() // who moves or closes has it then
		switch {
		case errors.Is(err, errMoved):
		case errors.Is(err, errClosing):
			return nil, grant, g.ended()
		default:
			return m, grant, err
		}
	}
}

// take waits for the turn.
func (g *gate) take(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-g.closing.Done():
		return g.ended()
	}
}

// pass gives the turn on.
func (g *gate) pass() { <-g.turn }

var (
	errMoved   = errors.New("pulsarthrottle: the consumer has moved") // the era has ended: look again
	errClosing = errors.New("pulsarthrottle: closing")
)

// obtain is next for who has the turn. Whatever the error, what was received is kept.
func (g *gate) obtain(ctx context.Context) (m pulsar.Message, grant dispatch.Grant, err error) {
	now := g.era.Load()
	waiting := g.until.either(ctx, now)
	switch {
	case g.kept != nil:
		err = g.permit(waiting, &grant)
	case g.request != nil:
		err = g.request.run(waiting, g, &grant)
	default:
		g.asks.Add(1)
		m, err = g.receive(waiting)
		g.asks.Add(1)
		if err == nil {
			g.keep(m)
			err = g.permit(waiting, &grant)
		}
	}
	switch {
	case g.closing.Err() != nil:
		err = errClosing
	case now.Err() != nil:
		err = errMoved
	case err == nil:
		m = g.kept
		g.drop()
		return m, grant, nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, dispatch.ErrClosed):
		err = fmt.Errorf("pulsarthrottle: %w", dispatch.ErrClosed)
	}
	grant.Done(0, 0)
	return nil, dispatch.Grant{}, err
}

// keep notes what was received.
func (g *gate) keep(m pulsar.Message) {
	g.putBack(m)
	g.at(m.Topic()).received(m.ID())
}

func (g *gate) putBack(m pulsar.Message) {
	g.kept = m
	g.held.Store(true)
}

func (g *gate) drop() {
	g.kept = nil
	g.held.Store(false)
}

// at returns where a message of that topic belongs.
func (g *gate) at(topic string) *place {
	if g.last == nil || g.last.name != topic {
		g.last = g.topics.place(topic)
	}
	return g.last
}

// permit waits for the permits of what is kept.
func (g *gate) permit(ctx context.Context, grant *dispatch.Grant) (err error) {
	if t := g.last.topic; t.err != nil {
		return t.err
	}
	*grant, err = g.last.topic.sub.AcquireSized(ctx, size(g.kept))
	return err
}

// settle charges the bytes of a message that was handed over, where they were not known when its permits came.
func (g *gate) settle(m pulsar.Message, grant *dispatch.Grant) {
	if g.request != nil {
		grant.Done(1, size(m))
	}
}

// ended returns what the client says when it is closed.
func (g *gate) ended() error {
	<-g.closed
	for {
		if _, err := g.receive(context.Background()); err != nil {
			return err
		}
	}
}

// move runs seek, which takes the client elsewhere, while nobody receives. What was received and not handed over is
// dropped, as the client drops what it has in its queue; unless seek fails.
func (g *gate) move(seek func() error) error {
	now := g.era.Load()
	now.end()
	g.turn <- struct{}{}
	defer g.pass()
	if g.closing.Err() == nil {
		g.era.CompareAndSwap(now, newEra(g.closing))
	}
	if g.request != nil {
		g.request.cancel(g)
	}
	err := seek()
	if err == nil {
		g.drop()
		g.topics.moved()
	}
	return err
}

// shut ends what waits, and then runs end, which closes the client's. It is called once.
func (g *gate) shut(end func()) {
	g.close()
	g.turn <- struct{}{}
	if g.request != nil {
		g.request.cancel(g)
	}
	g.drop()
	g.pass()
	end()
	close(g.closed)
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
