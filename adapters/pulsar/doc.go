// Package pulsarthrottle applies the limits of a dispatch.Limiter to consumers and readers of
// pulsar-client-go.
//
//	options := pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "billing"}
//	c, err := pulsarthrottle.Subscribe(client, options, lim)
//	m, err := c.Receive(ctx) // returns when there is a permit for m
//	err = c.Ack(m)
//
// All partitions of a topic have one limit, which all its subscriptions, consumers and replicas
// share. A message needs permits of its own topic, and counts with its exact size: the bytes of
// its payload, its key, and the names and values of its properties. A batch counts as its
// messages. A message that is delivered again needs permits again. The messages that the broker
// pushes ahead of the permits are bounded: see [Subscribe].
//
// A message that waits for its permits is not acknowledged. So nothing is lost if the process
// dies, and no timeout of the broker applies. The client's connection, acknowledgements and pings
// continue meanwhile.
package pulsarthrottle
