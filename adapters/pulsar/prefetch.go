package pulsarthrottle

import (
	"math"
	"time"

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
	rates := map[string]float64{} // by topic
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
		rates[name] = t.sub.Stats().MessageRate(assumedSize)
	}
	queue = min(queue, queueOf(client, rates))
	if math.IsInf(queue, 1) {
		return nil
	}
	options.ReceiverQueueSize = capped(options.ReceiverQueueSize, queue)
	// Unbuffered, since messages in the channel are pushed ahead too.
	options.MessageChannel = make(chan pulsar.ConsumerMessage)
	return nil
}

// partitionsTimeout is how long Subscribe and CreateReader wait for the numbers of partitions. The
// client asks for them again: an open that fails takes this much longer than the client's.
const partitionsTimeout = 900 * time.Millisecond

// queueOf returns the smallest queue of each partition that topics want, for limits in messages per
// second; +Inf if none has a limit. It asks for the partitions where they matter. If no answer
// comes in time, or a fault, which the client reports when it opens the topic, patternQueue bounds
// the queue.
func queueOf(client pulsar.Client, rates map[string]float64) float64 {
	type queue struct {
		name string
		size float64
	}
	limited := map[string]float64{}
	for name, rate := range rates {
		if rate <= singleRate {
			return 1
		}
		if !math.IsInf(rate, 1) {
			limited[name] = rate
		}
	}
	queues, answers := map[string]float64{}, make(chan queue, len(limited))
	for name, rate := range limited {
		all := math.Ceil(rate * queueSeconds)
		queues[name] = min(patternQueue, all)
		go func() {
			if partitions, err := client.TopicPartitions(name); err == nil {
				answers <- queue{name, math.Ceil(rate * queueSeconds / float64(max(1, len(partitions))))}
			} else {
				answers <- queue{name, min(patternQueue, all)}
			}
		}()
	}
	timeout := time.After(partitionsTimeout)
	for range limited {
		select {
		case q := <-answers:
			queues[q.name] = q.size
			continue
		case <-timeout:
		}
		break
	}
	least := math.Inf(1)
	for _, size := range queues {
		least = min(least, size)
	}
	return least
}

// capped returns the queue of an option, where 0 is the client's default, or a smaller one.
func capped(option int, queue float64) int {
	if option <= 0 {
		option = defaultQueue
	}
	return int(min(float64(option), queue))
}
