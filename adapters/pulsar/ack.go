package pulsarthrottle

import (
	"cmp"
	"errors"
	"math"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// A partition is one of a topic, in the words of messages and of their IDs.
type partition struct {
	topic string // with -partition-N
	index int32
}

func partitionOf(m pulsar.Message) partition { return partition{m.Topic(), m.ID().PartitionIdx()} }

// A messageID orders the messages of a partition.
type messageID struct {
	at    position
	batch int32 // the index in its batch
}

func messageIDOf(id pulsar.MessageID) messageID {
	return messageID{positionOf(id), max(0, id.BatchIdx())}
}

// lastOf returns the last message that id stands for: without an index it stands for a whole batch.
func lastOf(id pulsar.MessageID) messageID {
	last := messageIDOf(id)
	if id.BatchIdx() < 0 {
		last.batch = math.MaxInt32
	}
	return last
}

func (i messageID) compare(j messageID) int {
	return cmp.Or(i.at.compare(j.at), cmp.Compare(i.batch, j.batch))
}

// tracks reports whether a message is in flight.
func (c *Consumer) tracks() bool { return c.lim != nil && !c.inFlight.Empty() }

// settle ends the flight of a message, so that a policy's maxInFlight no longer counts it.
func (c *Consumer) settle(id pulsar.MessageID) {
	if c.tracks() && id != nil {
		c.inFlight.Settle(messageIDOf(id), lastOf(id))
	}
}

// settleThrough ends the flights of a partition's messages up to id. The topic may be unknown,
// "": an ID does not tell it. Then the partition is the one in which the message is in flight or,
// for a consumer of one topic, the one with the index of id.
func (c *Consumer) settleThrough(id pulsar.MessageID, topic string) {
	if !c.tracks() || id == nil {
		return
	}
	in := func(p partition) bool { return p.topic == topic }
	if topic == "" {
		if found, ok := c.inFlight.Find(messageIDOf(id)); ok {
			in = func(p partition) bool { return p == found }
		} else if len(c.stream.topics.all()) == 1 {
			in = func(p partition) bool { return p.index == id.PartitionIdx() }
		}
	}
	c.inFlight.SettleThrough(lastOf(id), in)
}

// Ack is the client's. A message that is settled, by this or another method, is no longer in
// flight.
func (c *Consumer) Ack(m pulsar.Message) error {
	err := c.Consumer.Ack(m)
	if err == nil && c.tracks() {
		c.settle(m.ID())
	}
	return err
}

// AckID is the client's.
func (c *Consumer) AckID(id pulsar.MessageID) error {
	err := c.Consumer.AckID(id)
	if err == nil {
		c.settle(id)
	}
	return err
}

// AckWithTxn is the client's.
func (c *Consumer) AckWithTxn(m pulsar.Message, txn pulsar.Transaction) error {
	err := c.Consumer.AckWithTxn(m, txn)
	if err == nil {
		c.settle(m.ID())
	}
	return err
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
			c.settle(id)
		}
	}
	return err
}

// AckCumulative is the client's.
func (c *Consumer) AckCumulative(m pulsar.Message) error {
	err := c.Consumer.AckCumulative(m)
	if err == nil {
		c.settleThrough(m.ID(), m.Topic())
	}
	return err
}

// AckIDCumulative is the client's.
func (c *Consumer) AckIDCumulative(id pulsar.MessageID) error {
	err := c.Consumer.AckIDCumulative(id)
	if err == nil {
		c.settleThrough(id, "")
	}
	return err
}

// Nack is the client's. The broker delivers the message again, and it needs permits again. Until
// then it is not in flight.
func (c *Consumer) Nack(m pulsar.Message) {
	c.Consumer.Nack(m)
	c.settle(m.ID())
}

// NackID is the client's.
func (c *Consumer) NackID(id pulsar.MessageID) {
	c.Consumer.NackID(id)
	c.settle(id)
}

// ReconsumeLater is the client's. The message comes again from the retry topic, which has limits of
// its own.
func (c *Consumer) ReconsumeLater(m pulsar.Message, delay time.Duration) {
	c.Consumer.ReconsumeLater(m, delay)
	c.settle(m.ID())
}

// ReconsumeLaterWithCustomProperties is the client's.
func (c *Consumer) ReconsumeLaterWithCustomProperties(
	m pulsar.Message, properties map[string]string, delay time.Duration,
) {
	c.Consumer.ReconsumeLaterWithCustomProperties(m, properties, delay)
	c.settle(m.ID())
}
