package pulsarthrottle

import (
	"math"

	"github.com/apache/pulsar-client-go/pulsar"
)

// What Subscribe and CreateReader let a broker push ahead.
const (
	singleRate   = 100  // messages a second; at most that with a queue of one, as each message then takes a request to the broker
	queueSeconds = 0.05 // of a higher limit, over all partitions
	assumedSize  = 1024 // of a message
	defaultQueue = 1000 // the client's
	patternQueue = 100  // with a TopicsPattern
)

// limitQueue opens the topics that options name, and bounds what is pushed ahead, unless nothing is limited. A zero-queue
// consumer stays as it is.
func (c *Consumer) limitQueue(client pulsar.Client, options *pulsar.ConsumerOptions) error {
	names := options.Topics
	if options.Topic != "" {
		names = []string{options.Topic}
	}
	queue := math.Inf(1)
	if options.TopicsPattern != "" && len(names) == 0 {
		queue = patternQueue
	}
	for _, name := range names {
		t, err := c.gate.topics.open(fullName(name))
		if err != nil {
			return err
		}
		if options.EnableZeroQueueConsumer && len(names) == 1 {
			c.gate.zeroQueue = t
			return nil
		}
		rate := t.sub.Stats().MessageRate(assumedSize)
		if math.IsInf(rate, 1) {
			continue // whatever its partitions
		}
		partitions, err := client.TopicPartitions(name)
		if err != nil {
			return err
		}
		queue = min(queue, queueOf(rate, len(partitions)))
	}
	if math.IsInf(queue, 1) {
		return nil
	}
	options.ReceiverQueueSize = capped(options.ReceiverQueueSize, queue)
	options.MessageChannel = make(chan pulsar.ConsumerMessage) // unbuffered: what is in it would be ahead, too
	return nil
}

// queueOf is the queue of each of a topic's partitions.
func queueOf(rate float64, partitions int) float64 {
	if rate <= singleRate {
		return 1
	}
	return math.Ceil(rate * queueSeconds / float64(max(1, partitions)))
}

// capped is the smaller one of a queue that an option says, 0 for the client's default, and another.
func capped(option int, queue float64) int {
	if option <= 0 {
		option = defaultQueue
	}
	return int(min(float64(option), queue))
}
