package pulsarthrottle

import (
	"context"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A request is how messages come from a zero-queue consumer: each Receive of the client asks the broker for one message
// more. A Receive that ends without one would leave that with the broker, so it has no deadline: it goes on while its
// caller has gone, and what comes is for the next. Before the broker is asked there is a permit; but it goes back when its
// caller goes, and what comes then gets one when it is handed over.
type request struct {
	topic   *topic      // whose permit comes first
	pending chan answer // has the answer of the Receive under way; nil: there is none
	stop    context.CancelFunc
}

type answer struct {
	m   pulsar.Message
	err error
}

// run returns a message and its permits, of which the bytes are a guess where they came first. With an error there may be a
// message without permits.
func (r *request) run(ctx context.Context, g *gate, grant *dispatch.Grant) (m pulsar.Message, err error) {
	first := r.pending == nil
	if first {
		if *grant, err = r.topic.sub.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		r.start(g.receive)
	}
	g.asks.Add(1)
	select {
	case a := <-r.pending:
		r.pending = nil
		r.stop()
		g.answered(a.err)
		if a.err != nil {
			return nil, a.err
		}
		p := g.received(a.m)
		if first {
			g.account = r.topic.sub
			return a.m, ctx.Err()
		}
		return a.m, g.permit(ctx, a.m, p, grant)
	case <-ctx.Done():
		g.asks.Add(-1)
		return nil, ctx.Err()
	}
}

func (r *request) start(receive func(context.Context) (pulsar.Message, error)) {
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	pending := make(chan answer, 1)
	r.pending = pending
	go func() {
		m, err := receive(ctx)
		pending <- answer{m, err}
	}()
}

// cancel ends the Receive under way, which would keep the client from moving and from closing. The broker makes a new
// consumer where that succeeds; else it sends one message ahead from now on.
func (r *request) cancel(g *gate) {
	if r.pending == nil {
		return
	}
	r.stop()
	if a := <-r.pending; a.err == nil {
		g.received(a.m)
		g.keep(a.m)
	}
	r.pending = nil
}
