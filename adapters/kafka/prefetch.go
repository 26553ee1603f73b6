package kafkathrottle

import (
	"math"

	"github.com/segmentio/kafka-go"
)

// What NewReader lets a reader have in memory.
const (
	queueSeconds = 0.25 // of the limit in the queue
	fetchSeconds = 1.0  // of the limit in one fetch of a partition
	assumedSize  = 1024 // of a message
	minMaxBytes  = 16 << 10
)

// limitPrefetch sizes cfg to the limits in force.
func (r *Reader) limitPrefetch(cfg *kafka.ReaderConfig) {
	rate := 0.0 // messages a second, of all topics together
	for _, t := range r.topics {
		rate += t.sub.Stats().MessageRate(assumedSize)
	}
	prefetch(cfg, rate)
}

// prefetch is NewReader's formula.
func prefetch(cfg *kafka.ReaderConfig, rate float64) {
	if math.IsInf(rate, 1) {
		return
	}
	if cfg.QueueCapacity == 0 {
		cfg.QueueCapacity = 100 // kafka-go's defaults
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 1e6
	}
	cfg.QueueCapacity = int(min(float64(cfg.QueueCapacity), max(1, math.Ceil(rate*queueSeconds))))
	cfg.MaxBytes = int(min(float64(cfg.MaxBytes), max(minMaxBytes, float64(cfg.MinBytes), math.Ceil(rate*fetchSeconds*assumedSize))))
}
