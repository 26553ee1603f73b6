package pulsarthrottle

import (
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

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
