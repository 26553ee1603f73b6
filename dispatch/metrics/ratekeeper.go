package metrics

import (
	"math"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
)

// RatekeeperHandler serves the metrics of a Ratekeeper, and nothing else.
func RatekeeperHandler(k *ratekeeper.Ratekeeper) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewRatekeeperCollector(k))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// NewRatekeeperCollector returns what collects the metrics of a Ratekeeper: of each throttling id (label id) all that its last decision followed
// from, and of those who load busy backends (labels backend, zone, id) how much. One that does not lead shows
// throttle_ratekeeper_term 0 alone.
//
//	throttle_ratekeeper_term                 of the election; 0 = it does not lead
//	throttle_ratekeeper_tracked_ids          of which something is known
//	throttle_quota_started_rate              messages a second begun by all replicas
//	throttle_quota_cost_rate                 bytes of cost a second
//	throttle_quota_average_cost_bytes        of a message
//	throttle_quota_reserved_rate             messages a second; likewise desired, limiting (no series where nothing limits), target
//	throttle_quota_rate                      messages a second in force
//	throttle_quota_busy                      1: limited by a backend
//	throttle_quota_shadow                    1: in shadow, so that no rate of it limits anything
//	throttle_busy_reader_cost_rate           bytes of cost a second of a backend near its target
//	throttle_busy_reader_fraction            of that backend's cost, 0 to 1
func NewRatekeeperCollector(k *ratekeeper.Ratekeeper) prometheus.Collector { return keeper{k} }

type keeper struct{ k *ratekeeper.Ratekeeper }

func ofID(name, help string) *prometheus.Desc { return describe("quota_"+name, help, "id") }

var (
	term       = describe("ratekeeper_term", "Term in which this ratekeeper leads; 0 = it does not.")
	tracked    = describe("ratekeeper_tracked_ids", "Throttling ids of which something is known.")
	started    = ofID("started_rate", "Messages a second begun by all replicas.")
	costs      = ofID("cost_rate", "Bytes of cost a second.")
	average    = ofID("average_cost_bytes", "Cost of a message on average.")
	reserved   = ofID("reserved_rate", "Messages a second that the reserved quota is worth.")
	desired    = ofID("desired_rate", "Messages a second that the total quota is worth.")
	limiting   = ofID("limiting_rate", "Messages a second that backends near their targets can bear.")
	target     = ofID("target_rate", "Messages a second found last.")
	inForce    = ofID("rate", "Messages a second in force.")
	quotaBusy  = ofID("busy", "1 if a backend limits the id.")
	shadow     = ofID("shadow", "1 if the rates are found and limit nothing.")
	readerCost = describe("busy_reader_cost_rate", "Bytes of cost a second of a backend near its target.", "backend", "zone", "id")
	readerPart = describe("busy_reader_fraction", "Part of that backend's cost.", "backend", "zone", "id")
)

// Describe implements prometheus.Collector.
func (keeper) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		term, tracked, started, costs, average, reserved, desired, limiting, target, inForce, quotaBusy, shadow, readerCost, readerPart,
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
