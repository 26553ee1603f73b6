package kafkathrottle

import (
	"cmp"
	"math"

	"github.com/segmentio/kafka-go"
)

// What NewReader lets a kafka.Reader read ahead.
const (
	queueSeconds = 0.25 // of the limit, in the queue
	fetchSeconds = 1.0  // of the limit, in one fetch of a partition
	assumedSize  = 1024 // bytes of a message
	minMaxBytes  = 16 << 10
)

// withDefaults fills in kafka-go's defaults of what NewReader changes.
func withDefaults(cfg *kafka.ReaderConfig) {
	cfg.QueueCapacity = cmp.Or(cfg.QueueCapacity, 100)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 1e6)
	if cfg.GroupID != "" && len(cfg.GroupBalancers) == 0 {
		cfg.GroupBalancers = []kafka.GroupBalancer{kafka.RangeGroupBalancer{}, kafka.RoundRobinGroupBalancer{}}
	}
}

// limitPrefetch sizes what cfg reads ahead to the limits in force.
func (r *Reader) limitPrefetch(cfg *kafka.ReaderConfig) {
	rate := 0.0 // messages per second, of all topics together
	for _, t := range r.topics {
		rate += t.sub.Stats().MessageRate(assumedSize)
	}
	sizePrefetch(cfg, rate)
}

// sizePrefetch sizes what cfg reads ahead to a rate in messages per second. Infinity changes
// nothing.
func sizePrefetch(cfg *kafka.ReaderConfig, rate float64) {
	if math.IsInf(rate, 1) {
		return
	}
	queue := max(1, math.Ceil(rate*queueSeconds))
	bytes := max(minMaxBytes, float64(cfg.MinBytes), math.Ceil(rate*fetchSeconds*assumedSize))
	cfg.QueueCapacity = int(min(float64(cfg.QueueCapacity), queue))
	cfg.MaxBytes = int(min(float64(cfg.MaxBytes), bytes))
}
