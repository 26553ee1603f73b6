package pulsarthrottle

import (
	"cmp"
	"context"
	"math"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A Reader is a pulsar.Reader whose messages wait for their permits. Its methods behave as the
// client documents unless noted here. Any number of goroutines may use it at once; Next serves
// them one after the other.
//
//	for r.HasNext() { // as a table view does: all messages there are, and then new ones
//		m, err := r.Next(ctx)
//		table[m.Key()] = m.Payload()
//	}
type Reader struct {
	pulsar.Reader

	lim    *dispatch.Limiter // nil: the fields below are not used
	stream stream
	polled polled
	once   sync.Once // of Close
}

var _ pulsar.Reader = (*Reader)(nil)

// CreateReader is client.CreateReader for a Reader whose messages wait for permits of lim. With a
// nil lim they do not wait. It bounds what the broker pushes ahead as [Subscribe] does; the
// client has no zero-queue reader. The end of its topic is asked for once a second. The client
// cannot ask for several partitions: a Reader of several has caught up when it has had no message
// for a second.
func CreateReader(
	client pulsar.Client, options pulsar.ReaderOptions, lim *dispatch.Limiter, opts ...Option,
) (*Reader, error) {
	if lim == nil {
		inner, err := client.CreateReader(options)
		if err != nil {
			return nil, err
		}
		return &Reader{Reader: inner}, nil
	}
	name := cmp.Or(options.SubscriptionName, options.SubscriptionRolePrefix)
	r, t, err := newReader(options.Topic, name, lim, opts)
	if err != nil {
		r.stream.topics.close()
		return nil, refusal(err, func() (pulsar.Reader, error) {
			return client.CreateReader(options)
		})
	}
	rate := t.sub.Stats().MessageRate(assumedSize)
	partitions := partitionsOf(client, map[string]float64{options.Topic: rate})[options.Topic]
	options.ReceiverQueueSize = capped(options.ReceiverQueueSize, queueOf(rate, partitions))
	inner, err := client.CreateReader(options)
	if err != nil {
		r.stream.topics.close()
		return nil, err
	}
	if partitions == 0 { // it was not asked for, or did not come in time
		names, _ := client.TopicPartitions(options.Topic)
		partitions = len(names)
	}
	r.start(inner, partitions != 1)
	held := capped(options.ReceiverQueueSize, math.Inf(1)) * max(1, partitions)
	t.sub.ReportReadAhead(int64(held) + 1)
	return r, nil
}

// WrapReader applies the limits of lim to r. The new Reader owns r and closes it. What the broker
// pushes ahead stays as r was opened.
func WrapReader(r pulsar.Reader, lim *dispatch.Limiter, opts ...Option) (*Reader, error) {
	if lim == nil {
		return &Reader{Reader: r}, nil
	}
	w, _, err := newReader(r.Topic(), "", lim, opts)
	if err != nil {
		return nil, err
	}
	_, err = r.GetLastMessageID()
	w.start(r, err != nil) // it fails for several partitions
	return w, nil
}

// newReader returns a Reader that is not started, with or without an error.
func newReader(
	name, subscription string, lim *dispatch.Limiter, opts []Option,
) (*Reader, *topic, error) {
	o := newOptions(opts)
	r := &Reader{lim: lim}
	subscription = cmp.Or(o.subscription, subscription, DefaultReader)
	if err := r.stream.topics.init(lim, subscription, o); err != nil {
		return r, nil, err
	}
	t, err := r.stream.topics.open(fullName(name))
	r.stream.only = t
	return r, t, err
}

// start gives a Reader the client's reader. several says that it may have several partitions.
func (r *Reader) start(inner pulsar.Reader, several bool) {
	r.Reader = inner
	r.stream.open(inner.Next)
	ends := r.end
	if several {
		ends = noEnds
	}
	r.polled.join(&r.stream, ends)
}

// end asks for the end of the Reader's partition.
func (r *Reader) end() ([]end, error) {
	id, err := r.Reader.GetLastMessageID()
	if err != nil {
		return nil, err
	}
	return []end{{fullName(r.Topic()), positionOf(id)}}, nil
}

// Next returns the next message when there are permits for it. If ctx ends first, the message is
// kept, and the next call returns it. After Close the error is the client's. If the Limiter has
// been closed, the error wraps dispatch.ErrClosed.
func (r *Reader) Next(ctx context.Context) (pulsar.Message, error) {
	if r.lim == nil {
		return r.Reader.Next(ctx)
	}
	m, grant, err := r.stream.next(ctx)
	if err != nil {
		return m, err
	}
	if grant.InFlight() {
		grant.Done(1, size(m)) // nothing tells when a message is done
	}
	r.stream.handOver(m, grant)
	return m, nil
}

// HasNext reports whether a message is kept, which waits for its permits, or the client has one.
func (r *Reader) HasNext() bool { return r.stream.Keeps() || r.Reader.HasNext() }
