package pulsarthrottle

import (
	"math"

	"github.com/apache/pulsar-client-go/pulsar"
)

// What Subscribe and CreateReader let a broker push ahead.
const (
	queueSeconds  = 0.05 // of the limit, over all partitions
	zeroQueueRate = 100  // messages a second; at most that with a zero-queue consumer
	assumedSize   = 1024 // of a message
	defaultQueue  = 1000 // the client's
	patternQueue  = 100  // with a TopicsPattern
)

// limitQueue opens the topics that options name, and sizes what is pushed ahead; limited is false if that is left as it was.
func (c *Consumer) limitQueue(client pulsar.Client, options *pulsar.ConsumerOptions) (limited bool, err error) {
	names := options.Topics
	if options.Topic != "" {
		names = []string{options.Topic}
	}
	queue := math.Inf(1)
	if options.TopicsPattern != "" && len(names) == 0 {
		queue = patternQueue
	}
	zero := len(names) == 1 && options.ReceiverQueueSize == 0 && options.DLQ == nil && !options.RetryEnable && options.MessageChannel == nil
	for _, name := range names {
		t, err := c.gate.topics.open(fullName(name))
		if err != nil {
			return false, err
		}
		rate := t.sub.Stats().MessageRate(assumedSize)
		if math.IsInf(rate, 1) && !options.EnableZeroQueueConsumer {
			continue // whatever its partitions
		}
		partitions, err := client.TopicPartitions(name)
		if err != nil {
			return false, err
		}
		n := len(partitions)
		if zero && n == 1 && rate <= zeroQueueRate {
			options.EnableZeroQueueConsumer = true
		}
		if options.EnableZeroQueueConsumer && len(names) == 1 {
			c.gate.request = &request{topic: t}
		}
		queue = min(queue, queueOf(rate, n))
	}
	if math.IsInf(queue, 1) {
		return false, nil
	}
	options.ReceiverQueueSize = capped(options.ReceiverQueueSize, queue)
	return true, nil
}

// queueOf is the queue of each of a topic's partitions.
func queueOf(rate float64, partitions int) float64 {
	return max(1, math.Ceil(rate*queueSeconds/float64(max(1, partitions))))
}

// capped is the smaller one of a queue that an option says, 0 for the client's default, and another.
func capped(option int, queue float64) int {
	if option <= 0 {
		option = defaultQueue
	}
	return int(min(float64(option), queue))
}
