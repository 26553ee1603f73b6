package kafkathrottle

import (
	"math"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/dispatch"
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
	limits := map[limited]float64{}
	for _, s := range r.lim.Stats().Subscriptions {
		if !s.Shadow {
			limits[limited{s.Topic, s.Subscription}] = messageRate(s.Limits)
		}
	}
	rate := 0.0 // messages a second, of all topics together
	for _, t := range r.topics {
		limit, ok := limits[t.limited]
		if !ok {
			return
		}
		rate += limit
	}
	prefetch(cfg, rate)
}

// messageRate is the rate of the narrowest limit in messages a second; infinite if there is none.
func messageRate(limits []dispatch.LimitStats) float64 {
	rate := math.Inf(1)
	for _, l := range limits {
		switch l.Reason {
		case dispatch.ReasonBytes, dispatch.ReasonSubscriptionBytes:
			rate = min(rate, l.Rate/assumedSize)
		default:
			rate = min(rate, l.Rate)
		}
	}
	return rate
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
