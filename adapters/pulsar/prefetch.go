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

// limitQueue opens the topics that options name, which it returns by name if they have queues, and
// bounds what is pushed ahead if they have limits. A zero-queue consumer stays as it is.
func (c *Consumer) limitQueue(
	client pulsar.Client, options *pulsar.ConsumerOptions,
) (opened map[string]*topic, err error) {
	names := options.Topics
	if options.Topic != "" {
		names = []string{options.Topic}
	}
	queue := math.Inf(1)
	if isPattern(*options) {
		queue = patternQueue
	}
	rates := map[string]float64{} // by name
	opened = map[string]*topic{}
	for _, name := range names {
		t, err := c.stream.topics.open(fullName(name))
		if err != nil {
			return nil, err
		}
		if options.EnableZeroQueueConsumer && len(names) == 1 {
			c.stream.zeroQueue = t
			return nil, nil
		}
		if len(names) == 1 && !options.RetryEnable {
			c.stream.only = t
		}
		rates[name], opened[name] = t.sub.Stats().MessageRate(assumedSize), t
	}
	partitions := partitionsOf(client, rates)
	for name, rate := range rates {
		queue = min(queue, queueOf(rate, partitions[name]))
	}
	if math.IsInf(queue, 1) {
		return opened, nil
	}
	options.ReceiverQueueSize = capped(options.ReceiverQueueSize, queue)
	// Unbuffered, since messages in the channel are pushed ahead too.
	options.MessageChannel = make(chan pulsar.ConsumerMessage)
	return opened, nil
}

// reportReadAhead reports how many messages an open consumer with this ReceiverQueueSize may hold
// of each topic, by the names that it was opened with. The client keeps a queue for each partition,
// and one message waits for its permit.
func reportReadAhead(client pulsar.Client, opened map[string]*topic, queue int) {
	held := map[*topic]int64{}
	for name, t := range opened {
		partitions, _ := client.TopicPartitions(name) // it was there a moment ago
		held[t] += int64(capped(queue, math.Inf(1)) * max(1, len(partitions)))
		t.sub.ReportReadAhead(held[t] + 1)
	}
}

// partitionsTimeout is how long Subscribe and CreateReader wait for the numbers of partitions. The
// client asks for them again: an open that fails takes this much longer than the client's.
const partitionsTimeout = 900 * time.Millisecond

// partitionsOf asks for the partitions of topics whose queue depends on them, by the topics' limits
// in messages per second. It returns the numbers that come in time. The client reports faults when
// it opens a topic.
func partitionsOf(client pulsar.Client, rates map[string]float64) map[string]int {
	type answer struct {
		topic string
		n     int
	}
	answers, asked := make(chan answer, len(rates)), 0
	for topic, rate := range rates {
		if rate > singleRate && !math.IsInf(rate, 1) {
			asked++
			go func() {
				partitions, _ := client.TopicPartitions(topic)
				answers <- answer{topic, len(partitions)}
			}()
		}
	}
	known, timeout := map[string]int{}, time.After(partitionsTimeout)
	for range asked {
		select {
		case a := <-answers:
			known[a.topic] = a.n
		case <-timeout:
			return known
		}
	}
	return known
}

// queueOf returns the queue of each of a topic's partitions, for a limit in messages per second.
// If their number is unknown, 0, the queue is at most patternQueue.
func queueOf(rate float64, partitions int) float64 {
	switch {
	case math.IsInf(rate, 1):
		return rate
	case rate <= singleRate:
		return 1
	case partitions == 0:
		return min(patternQueue, math.Ceil(rate*queueSeconds))
	}
	return math.Ceil(rate * queueSeconds / float64(partitions))
}

// capped returns the queue of an option, where 0 is the client's default, or a smaller one.
func capped(option int, queue float64) int {
	if option <= 0 {
		option = defaultQueue
	}
	return int(min(float64(option), queue))
}
