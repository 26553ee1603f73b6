package pulsarthrottle

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// flights are the messages that were handed over and are not settled, where a policy's maxInFlight counts them.
type flights struct {
	some  atomic.Bool
	mu    sync.Mutex
	under map[flightKey]*flight
}

// A flightKey tells messages apart: permit stores are a cluster's.
type flightKey struct {
	at    position
	index int32 // in its batch
}

func keyOf(id pulsar.MessageID) flightKey { return flightKey{positionOf(id), max(0, id.BatchIdx())} }

type flight struct {
	topic     string // its partition's
	partition int32
	bytes     int64
	grant     dispatch.Grant
}

// add keeps a message's grant. One that was sent again takes the place of its first flight.
func (f *flights) add(m pulsar.Message, g dispatch.Grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.under == nil {
		f.under = map[flightKey]*flight{}
	}
	key := keyOf(m.ID())
	f.end(key)
	f.under[key] = &flight{m.Topic(), m.ID().PartitionIdx(), size(m), g}
	f.some.Store(true)
}

// end ends a flight, if there is one. The caller holds f.mu.
func (f *flights) end(key flightKey) {
	if flight := f.under[key]; flight != nil {
		flight.grant.Done(1, flight.bytes)
		delete(f.under, key)
	}
}

// cancel takes back what add did: the message was not handed over.
func (f *flights) cancel(id pulsar.MessageID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if flight := f.under[keyOf(id)]; flight != nil {
		flight.grant.Done(0, 0)
		delete(f.under, keyOf(id))
	}
}

// land ends the flight of a message; an id without an index is a whole batch.
func (f *flights) land(id pulsar.MessageID) {
	if !f.some.Load() || id == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(keyOf(id))
	if id.BatchIdx() < 0 {
		f.endWhere(func(key flightKey, _ *flight) bool { return key.at == positionOf(id) })
	}
}

// landUpTo ends the flights of a partition up to a message. An id does not say its topic, "": that is known if the message is in
// flight itself, or if only is set, as there is just one.
func (f *flights) landUpTo(id pulsar.MessageID, topic string, only bool) {
	if !f.some.Load() || id == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := f.under[keyOf(id)]; topic == "" && last != nil {
		topic = last.topic
	}
	f.endWhere(func(key flightKey, fl *flight) bool {
		order := key.at.compare(positionOf(id))
		mine := fl.topic == topic || topic == "" && only && fl.partition == id.PartitionIdx()
		return mine && (order < 0 || order == 0 && (id.BatchIdx() < 0 || key.index <= id.BatchIdx()))
	})
}

func (f *flights) landAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endWhere(func(flightKey, *flight) bool { return true })
}

func (f *flights) endWhere(wanted func(flightKey, *flight) bool) {
	for key, flight := range f.under {
		if wanted(key, flight) {
			f.end(key)
		}
	}
	f.some.Store(len(f.under) > 0)
}

// landed ends the flight of a message that was settled without an error.
func (c *Consumer) landed(id pulsar.MessageID, err error) error {
	if err == nil {
		c.flights.land(id)
	}
	return err
}

// Ack is the client's. What is settled, by this or another method, is in flight no more.
func (c *Consumer) Ack(m pulsar.Message) error { return c.landed(m.ID(), c.Consumer.Ack(m)) }

// AckID is the client's.
func (c *Consumer) AckID(id pulsar.MessageID) error { return c.landed(id, c.Consumer.AckID(id)) }

// AckWithTxn is the client's.
func (c *Consumer) AckWithTxn(m pulsar.Message, txn pulsar.Transaction) error {
	return c.landed(m.ID(), c.Consumer.AckWithTxn(m, txn))
}

// AckIDList is the client's.
func (c *Consumer) AckIDList(ids []pulsar.MessageID) error {
	err := c.Consumer.AckIDList(ids)
	var failed pulsar.AckError
	if err != nil && !errors.As(err, &failed) {
		return err
	}
	for _, id := range ids {
		if _, ok := failed[id]; !ok {
			c.flights.land(id)
		}
	}
	return err
}

// AckCumulative is the client's.
func (c *Consumer) AckCumulative(m pulsar.Message) error {
	err := c.Consumer.AckCumulative(m)
	if err == nil {
		c.flights.landUpTo(m.ID(), m.Topic(), false)
	}
	return err
}

// AckIDCumulative is the client's.
func (c *Consumer) AckIDCumulative(id pulsar.MessageID) error {
	err := c.Consumer.AckIDCumulative(id)
	if err == nil {
		c.flights.landUpTo(id, "", len(c.gate.topics.all()) == 1)
	}
	return err
}

// Nack is the client's.
func (c *Consumer) Nack(m pulsar.Message) {
	c.Consumer.Nack(m)
	c.flights.land(m.ID())
}

// NackID is the client's.
func (c *Consumer) NackID(id pulsar.MessageID) {
	c.Consumer.NackID(id)
	c.flights.land(id)
}

// ReconsumeLater is the client's: the message comes again from the retry topic, which has limits of its own.
func (c *Consumer) ReconsumeLater(m pulsar.Message, delay time.Duration) {
	c.Consumer.ReconsumeLater(m, delay)
	c.flights.land(m.ID())
}

// ReconsumeLaterWithCustomProperties is the client's.
func (c *Consumer) ReconsumeLaterWithCustomProperties(m pulsar.Message, properties map[string]string, delay time.Duration) {
	c.Consumer.ReconsumeLaterWithCustomProperties(m, properties, delay)
	c.flights.land(m.ID())
}
