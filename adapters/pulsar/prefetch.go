package pulsarthrottle

import (
	"math"

	"github.com/apache/pulsar-client-go/pulsar"
)

// What Subscribe and CreateReader let a broker push ahead.
const (
	// singleRate, in messages per second, is the highest limit with a queue of one message: each
	// message then takes a request to the broker.
	singleRate   = 100
	queueSeconds = 0.05 // of a higher limit, over all partitions
	assumedSize  = 1024 // bytes of a message
	defaultQueue = 1000 // the client's
	patternQueue = 100  // with a TopicsPattern
)

// limitQueue opens the topics that options name, and bounds what is pushed ahead if they have
// limits. A zero-queue consumer stays as it is.
func (c *Consumer) limitQueue(client pulsar.Client, options *pulsar.ConsumerOptions) error {
	names := options.Topics
	if options.Topic != "" {
		names = []string{options.Topic}
	}
	queue := math.Inf(1)
	if isPattern(*options) {
		queue = patternQueue
	}
	for _, name := range names {
		t, err := c.stream.topics.open(fullName(name))
		if err != nil {
			return err
		}
		if options.EnableZeroQueueConsumer && len(names) == 1 {
			c.stream.zeroQueue = t
			return nil
		}
		if len(names) == 1 && !options.RetryEnable {
			c.stream.only = t
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
	// Unbuffered, since messages in the channel are pushed ahead too.
	options.MessageChannel = make(chan pulsar.ConsumerMessage)
	return nil
}

// queueOf returns the queue of each of a topic's partitions, for a limit in messages per second.
func queueOf(rate float64, partitions int) float64 {
	if rate <= singleRate {
		return 1
	}
	return math.Ceil(rate * queueSeconds / float64(max(1, partitions)))
}

// capped returns the queue of an option, where 0 is the client's default, or a smaller one.
func capped(option int, queue float64) int {
	if option <= 0 {
		option = defaultQueue
	}
	return int(min(float64(option), queue))
}
