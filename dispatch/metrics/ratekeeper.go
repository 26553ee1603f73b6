package metrics

import (
	"math"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
)

// RatekeeperHandler serves the metrics of one Ratekeeper and no others.
func RatekeeperHandler(k *ratekeeper.Ratekeeper) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewRatekeeperCollector(k))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// NewRatekeeperCollector returns a collector of a Ratekeeper's metrics: the inputs and results of
// the last decision on each throttling id (label id), and the costs of the ids that load backends
// near their targets (labels backend, zone, id). While the ratekeeper does not lead, it has one
// metric, throttle_ratekeeper_term, which is 0.
//
//	throttle_ratekeeper_term                    term of the election; 0: it does not lead
//	throttle_ratekeeper_tracked_ids             known ids
//	throttle_quota_busy                         1: a backend limits the id
//	throttle_quota_shadow                       1: the rates limit nothing
//	throttle_quota_average_cost_bytes           cost of a message
//	throttle_quota_cost_bytes_per_second        cost of all messages
//	throttle_busy_reader_cost_bytes_per_second  cost on a backend near its target
//	throttle_busy_reader_cost_ratio             part of that backend's cost, 0 to 1
//
// The following rates are in messages per second:
//
//	throttle_quota_started_messages_per_second   started by all replicas
//	throttle_quota_reserved_messages_per_second  the reserved quota
//	throttle_quota_desired_messages_per_second   the total quota
//	throttle_quota_limiting_messages_per_second  what backends can bear; no series without a limit
//	throttle_quota_target_messages_per_second    found last
//	throttle_quota_messages_per_second           in force
func NewRatekeeperCollector(k *ratekeeper.Ratekeeper) prometheus.Collector { return keeper{k} }

type keeper struct{ k *ratekeeper.Ratekeeper }

func ofID(name, help string) *prometheus.Desc { return describe("quota_"+name, help, "id") }

var (
	term = describe("ratekeeper_term",
		"Term in which this ratekeeper leads; 0 if it does not.")
	tracked   = describe("ratekeeper_tracked_ids", "Known throttling ids.")
	started   = ofID("started_messages_per_second", "Messages started by all replicas.")
	costs     = ofID("cost_bytes_per_second", "Cost of all messages.")
	average   = ofID("average_cost_bytes", "Average cost of a message.")
	reserved  = ofID("reserved_messages_per_second", "The reserved quota as a rate.")
	desired   = ofID("desired_messages_per_second", "The total quota as a rate.")
	limiting  = ofID("limiting_messages_per_second", "What backends near their targets can bear.")
	target    = ofID("target_messages_per_second", "The rate found last.")
	inForce   = ofID("messages_per_second", "The rate in force.")
	quotaBusy = ofID("busy", "1 if a backend limits the id.")
	shadow    = ofID("shadow", "1 if the rates limit nothing.")

	readerCost = describe("busy_reader_cost_bytes_per_second", "Cost on a backend near its target.",
		"backend", "zone", "id")
	readerPart = describe("busy_reader_cost_ratio",
		"Part of the cost of a backend near its target.", "backend", "zone", "id")
)

// Describe implements prometheus.Collector.
func (keeper) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		term, tracked, started, costs, average, reserved, desired, limiting, target, inForce,
		quotaBusy, shadow, readerCost, readerPart,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c keeper) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, x float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, labels...)
	}
	s := c.k.Status()
	gauge(term, float64(s.Term))
	if s.Term == 0 {
		return
	}
	gauge(tracked, float64(s.Tracked))
	for _, d := range s.Decisions {
		id := string(d.ID)
		gauge(started, d.Rate, id)
		gauge(costs, d.Cost, id)
		gauge(average, d.AverageCost, id)
		gauge(reserved, d.Reserved, id)
		gauge(desired, d.Desired, id)
		if !math.IsNaN(d.Limiting) {
			gauge(limiting, d.Limiting, id)
		}
		gauge(target, d.Target, id)
		gauge(inForce, d.Smoothed, id)
		gauge(quotaBusy, flag(d.Busy), id)
		gauge(shadow, flag(d.Shadow), id)
	}
	for _, r := range s.Readers {
		gauge(readerCost, r.Cost, r.Backend, r.Zone, string(r.ID))
		gauge(readerPart, r.Busyness, r.Backend, r.Zone, string(r.ID))
	}
}
