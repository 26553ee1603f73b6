package pulsarthrottle

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A Reader is a pulsar.Reader whose messages wait for their permits. What is not said here is as there. Any number of
// goroutines may use it at once; Next serves them one after the other.
//
//	for r.HasNext() { // as a table view does: all there is, and then what comes
//		m, err := r.Next(ctx)
//		table[m.Key()] = m.Payload()
//	}
type Reader struct {
	pulsar.Reader

	gate   gate
	lim    *dispatch.Limiter // nil: nothing here is used
	polled polled
	once   sync.Once
}

var _ pulsar.Reader = (*Reader)(nil)

// CreateReader is client.CreateReader for a reader whose messages wait for the permits of lim; with a nil lim they do not wait.
// It bounds what is pushed ahead as [Subscribe] does; the client has no zero-queue reader. Where its topic ends is asked for once a
// second, which a reader of several partitions cannot do: that one has caught up when it has had nothing for a second.
func CreateReader(client pulsar.Client, options pulsar.ReaderOptions, lim *dispatch.Limiter, opts ...Option) (*Reader, error) {
	if lim == nil {
		inner, err := client.CreateReader(options)
		if err != nil {
			return nil, err
		}
		return &Reader{Reader: inner}, nil
	}
	given := options
	r, t, err := newReader(options.Topic, cmp.Or(options.SubscriptionName, options.SubscriptionRolePrefix), lim, opts)
	if err == nil {
		var partitions []string
		partitions, err = client.TopicPartitions(options.Topic)
		options.ReceiverQueueSize = capped(options.ReceiverQueueSize, queueOf(t.sub.Stats().MessageRate(assumedSize), len(partitions)))
	}
	if err != nil {
		r.gate.topics.close()
		return nil, refusal(err, func() (pulsar.Reader, error) { return client.CreateReader(given) })
	}
	if r.Reader, err = client.CreateReader(options); err != nil {
		r.gate.topics.close()
		return nil, err
	}
	r.start()
	return r, nil
}

// WrapReader puts lim in front of r, which the new Reader owns from now on and closes. What the broker pushes ahead is
// what r was opened with.
func WrapReader(r pulsar.Reader, lim *dispatch.Limiter, opts ...Option) (*Reader, error) {
	if lim == nil {
		return &Reader{Reader: r}, nil
	}
	w, _, err := newReader(r.Topic(), "", lim, opts)
	if err != nil {
		return nil, err
	}
	w.Reader = r
	w.start()
	return w, nil
}

// newReader returns a Reader that is not started, with or without an error.
func newReader(name, subscription string, lim *dispatch.Limiter, opts []Option) (*Reader, *topic, error) {
	o := newOptions(opts)
	r := &Reader{lim: lim}
	if err := r.gate.topics.begin(lim, cmp.Or(o.subscription, subscription, DefaultReader), o); err != nil {
		return r, nil, err
	}
	t, err := r.gate.topics.open(fullName(name))
	return r, t, err
}

func (r *Reader) start() {
	r.gate.open(r.Reader.Next)
	r.polled = polled{gate: &r.gate, ends: r.ends}
	r.polled.join()
}

// ends asks where the topic ends; nil: the client cannot ask for several partitions.
func (r *Reader) ends() ([]end, error) {
	id, err := r.Reader.GetLastMessageID()
	if err != nil && strings.Contains(err.Error(), "not supported") {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return []end{{fullName(r.Topic()), positionOf(id)}}, nil
}

// Next returns the next message when there is a permit for it. If ctx ends first, the message is kept for the next call,
// whoever makes it. After Close the error is the client's; if the Limiter has been closed first, it wraps dispatch.ErrClosed.
func (r *Reader) Next(ctx context.Context) (pulsar.Message, error) {
	if r.lim == nil {
		return r.Reader.Next(ctx)
	}
	m, grant, err := r.gate.next(ctx)
	if err == nil && grant.InFlight() {
		grant.Done(1, size(m)) // nothing says when it is done with
	}
	return m, err
}

// HasNext reports whether a message was kept by a Next that ended without its permit, or the client has one.
func (r *Reader) HasNext() bool { return r.gate.held.Load() || r.Reader.HasNext() }

// Seek drops the message that waits for its permit, if there is one, and goes on at id.
func (r *Reader) Seek(id pulsar.MessageID) error {
	return r.move(func() error { return r.Reader.Seek(id) })
}

// SeekByTime is Seek to what was published at t or later.
func (r *Reader) SeekByTime(t time.Time) error {
	return r.move(func() error { return r.Reader.SeekByTime(t) })
}

func (r *Reader) move(elsewhere func() error) error {
	if r.lim == nil {
		return elsewhere()
	}
	return r.gate.move(elsewhere)
}

// Close ends what waits, returns the permits allocated for this Reader alone, and closes the client's. Close the Reader before
// its Limiter.
func (r *Reader) Close() {
	if r.lim == nil {
		r.Reader.Close()
		return
	}
	r.once.Do(func() {
		r.gate.close()
		r.polled.leave()
		r.gate.shut(r.Reader.Close)
		r.gate.topics.close()
	})
}
