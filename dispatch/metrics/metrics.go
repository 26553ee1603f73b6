// Package metrics shows Prometheus what a Limiter does. All of it is read from Limiter.Stats
// when it is scraped, so that it costs nothing in between.
//
//	http.Handle("/metrics", metrics.Handler(lim))        // these metrics alone
//	registry.MustRegister(metrics.NewCollector(lim))     // beside others; one Limiter a registry
//
// Of each subscription (labels topic, subscription, and owner where it was opened with a tenant group or a tag):
//
//	throttle_waits_total                calls that waited until they were served, by reason
//	throttle_wait_seconds               how long they waited, a histogram
//	throttle_waiting_calls              calls that wait now
//	throttle_shadowed_messages_total    messages that shadow mode let through and enforcing would not have
//	throttle_caught_up                  1: this process has caught up with the producers
//	throttle_in_flight_messages         messages handed out and not done with; no series while there are none
//	throttle_exempt                     1: nothing is charged now: caught up, let through, or without a limit
//	throttle_backlog_messages           messages to read; no series while unknown
//
// Of each limit of a subscription (these labels and limit):
//
//	throttle_permits_granted_total      permits taken, those included that were given back
//	throttle_permits_returned_total     permits given back unused
//	throttle_permits_lapsed_total       permits allocated and wasted
//	throttle_permits_allocated             permits allocated and not taken; of a strict limit, those reserved: starts in the future
//	throttle_allocations_total             batches got from the permit store
//	throttle_limit_rate                 permits a second of the limit, over all processes
//	throttle_limit_ramp_rate            permits a second where the limit is on a ramp; no series otherwise
//	throttle_limit_share                permits a second that this process may count on; 0 = not known yet
//	throttle_limit_revision             of the policies, when the limit last changed
//
// Of the process:
//
//	throttle_permit_store_requests_total         allocations sent to the permit store
//	throttle_permit_store_errors_total        that failed
//	throttle_permit_store_late_total          that were answered too late to count
//	throttle_permit_store_unavailable                1: the last one failed
//	throttle_policy_revision            of the policies in force
//	throttle_policy_error               1: the policies cannot be read now, and the last ones hold
//	throttle_policies_bad               stored policies that make no sense and are not in force
//	throttle_info                       1, with labels version, cluster, replica and policies (the store's identity)
//
// limit and reason have the values of dispatch.Reason. The counts of a subscription begin anew when it
// is opened again, which Prometheus takes for a restart.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Handler serves the metrics of a Limiter, and nothing else.
func Handler(lim *dispatch.Limiter) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(lim))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// NewCollector returns what collects the metrics of a Limiter. A closed Limiter shows the last of its process's
// own counts, and no subscription.
func NewCollector(lim *dispatch.Limiter) prometheus.Collector { return collector{lim} }

type collector struct{ lim *dispatch.Limiter }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("throttle_"+name, help, labels, nil)
}

func ofSubscription(name, help string, more ...string) *prometheus.Desc {
	return describe(name, help, append([]string{"topic", "subscription", "owner"}, more...)...)
}

func ofLimit(name, help string) *prometheus.Desc { return ofSubscription(name, help, "limit") }

var (
	waits    = ofSubscription("waits_total", "Calls that waited for a permit until they were served, by reason.", "reason")
	waitTime = ofSubscription("wait_seconds", "How long calls waited that had to wait.")
	waiting  = ofSubscription("waiting_calls", "Calls that wait now.")
	shadowed = ofSubscription("shadowed_messages_total", "Messages that shadow mode let through and enforcing would not have.")
	caughtUp = ofSubscription("caught_up", "1 if this process has caught up with the producers.")
	inFlight = ofSubscription("in_flight_messages", "Messages handed out and not done with, where maxInFlight is set.")
	exempt   = ofSubscription("exempt", "1 if nothing is charged now: caught up, let through, or without a limit.")
	backlog  = ofSubscription("backlog_messages", "Messages to read in this process, while known.")

	granted     = ofLimit("permits_granted_total", "Permits taken, those included that were given back.")
	returned    = ofLimit("permits_returned_total", "Permits given back unused.")
	lapsed      = ofLimit("permits_lapsed_total", "Permits allocated and wasted.")
	allocated   = ofLimit("permits_allocated", "Permits allocated and not taken.")
	allocations = ofLimit("allocations_total", "Batches of permits got from the permit store.")
	rate        = ofLimit("limit_rate", "Permits a second of the limit, over all processes.")
	rampRate    = ofLimit("limit_ramp_rate", "Permits a second where the limit is on its ramp, while it rises.")
	share       = ofLimit("limit_share", "Permits a second that this process may count on; 0 if not known yet.")
	changed     = ofLimit("limit_revision", "Revision of the policies at which the limit last changed.")

	requests  = describe("permit_store_requests_total", "Allocations sent to the permit store.")
	errs      = describe("permit_store_errors_total", "Allocations that failed.")
	late      = describe("permit_store_late_total", "Allocations that were answered too late to count.")
	away      = describe("permit_store_unavailable", "1 if the last allocation failed.")
	revision  = describe("policy_revision", "Revision of the policies in force.")
	sourceErr = describe("policy_error", "1 if the policies cannot be read now.")
	bad       = describe("policies_bad", "Stored policies that make no sense and are not in force.")
	info      = describe("info", "1; the labels say what runs here.", "version", "cluster", "replica", "policies")
)

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		waits, waitTime, waiting, shadowed, caughtUp, exempt, inFlight, backlog,
		granted, returned, lapsed, allocated, allocations, rate, rampRate, share, changed,
		requests, errs, late, away, revision, sourceErr, bad, info,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, x float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, labels...)
	}
	s := c.lim.Stats()
	for _, sub := range s.Subscriptions {
		labels := []string{sub.Topic, sub.Subscription, sub.Owner}
		for reason, n := range sub.Waits {
			counter(waits, n, append(labels, string(reason))...)
		}
		ch <- histogram(sub.WaitTimes, labels)
		gauge(waiting, float64(sub.Waiting), labels...)
		counter(shadowed, sub.Shadowed, labels...)
		gauge(caughtUp, flag(sub.CaughtUp), labels...)
		gauge(exempt, flag(sub.Exempt), labels...)
		if sub.InFlight > 0 {
			gauge(inFlight, float64(sub.InFlight), labels...)
		}
		if sub.Backlog >= 0 {
			gauge(backlog, float64(sub.Backlog), labels...)
		}
		for _, l := range sub.Limits {
			labels := append(labels, string(l.Reason))
			counter(granted, l.Granted, labels...)
			counter(returned, l.Returned, labels...)
			counter(lapsed, l.Expired, labels...)
			gauge(allocated, float64(l.Stock), labels...)
			counter(allocations, l.Allocations, labels...)
			if l.Ramp > 0 {
				gauge(rampRate, l.Ramp, labels...)
			}
			gauge(rate, l.Rate, labels...)
			gauge(share, l.Share, labels...)
			gauge(changed, float64(l.Revision), labels...)
		}
	}
	counter(requests, s.Permits.Requests)
	counter(errs, s.Permits.Errors)
	counter(late, s.Permits.Late)
	gauge(away, flag(s.Permits.Unavailable))
	gauge(revision, float64(s.Revision))
	gauge(sourceErr, flag(s.PolicyError != ""))
	gauge(bad, float64(s.InvalidPolicies))
	gauge(info, 1, s.Version, s.Cluster, s.Replica, s.Identity)
}

// histogram turns the counts of each bucket into those of all up to it, as Prometheus has them.
func histogram(h dispatch.Histogram, labels []string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(dispatch.WaitBuckets))
	sum := uint64(0)
	for i, bound := range dispatch.WaitBuckets {
		sum += uint64(h.Buckets[i])
		buckets[bound.Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(waitTime, uint64(h.Count), h.Sum.Seconds(), buckets, labels...)
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
