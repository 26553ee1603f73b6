// Package metrics exposes a Limiter to Prometheus. All values come from Limiter.Stats at the time
// of a scrape and cost nothing in between.
//
//	http.Handle("/metrics", metrics.Handler(lim))        // only these metrics
//	registry.MustRegister(metrics.NewCollector(lim))     // beside others; one Limiter a registry
//
// For each subscription, with the labels topic, subscription, and owner (the tenant group or tag
// with which it was opened, if any):
//
//	throttle_waits_total                calls that had to wait, by reason, counted when served
//	throttle_wait_seconds               histogram of their waiting times
//	throttle_waiting_calls              calls waiting now
//	throttle_caught_up                  1: this replica has caught up with the producers
//	throttle_exempt                     1: nothing is charged now: caught up, or not limited
//	throttle_in_flight_messages         delivered and not done; only where maxInFlight is set
//	throttle_backlog_messages           messages not yet read; no series while unknown
//
// For each limit of a subscription, with these labels and limit:
//
//	throttle_shadowed_messages_total    messages that passed without a permit, in shadow mode
//	throttle_permits_granted_total      permits taken, including those given back later
//	throttle_permits_returned_total     permits given back unused
//	throttle_permits_expired_total      permits allocated and never used
//	throttle_permits_allocated          permits allocated and not yet taken
//	throttle_allocations_total          batches received from the permit store
//	throttle_limit_revision             revision of the policies at which the limit last changed
//
//	throttle_limit_permits_per_second         the limit, over all replicas
//	throttle_limit_ramp_permits_per_second    the limit on its ramp now; no series otherwise
//	throttle_limit_share_permits_per_second   this replica's share of it; 0: not known yet
//
// For the process:
//
//	throttle_permit_store_requests_total       requests sent to the permit store
//	throttle_permit_store_errors_total         requests that failed
//	throttle_permit_store_late_replies_total   replies that came too late to be used
//	throttle_permit_store_damaged_total        requests that found stored state out of bounds
//	throttle_permit_store_unavailable          1: no request was answered lately
//	throttle_permit_store_latency_seconds      how long calls with allocations take, averaged over
//	                                           the last few; 0: none was, in the last minute
//	throttle_policy_store_unavailable          1: the store's policies are not followed, since it
//	                                           cannot be read or they are held; the last ones apply
//	throttle_policies_held                     1: the store was read, and is not followed: it is
//	                                           empty, another one, older than it was, or adopted or
//	                                           at a revision by a clock that was ahead
//	throttle_other_policy_stores               other policy stores whose replicas use the same limits
//	throttle_policy_revision                   revision of the policies in force
//	throttle_policies                          policies, quotas and settings in force
//	throttle_invalid_policies                  stored policies that are invalid and ignored
//	throttle_info                              1; labels version, cluster, replica, and policies,
//	                                           the policy store's identity
//
// The labels limit and reason have the values of dispatch.Reason. The counters of a subscription
// start at 0 when it is opened again, as after a restart.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Handler serves the metrics of one Limiter and no others.
func Handler(lim *dispatch.Limiter) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(lim))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// NewCollector returns a collector of a Limiter's metrics. For a closed Limiter, it keeps returning
// the last values of the process, and no subscriptions.
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
	waits = ofSubscription("waits_total", "Calls that had to wait for a permit, by reason.",
		"reason")
	waitTime = ofSubscription("wait_seconds", "Waiting times of calls that had to wait.")
	waiting  = ofSubscription("waiting_calls", "Calls waiting now.")
	shadowed = ofLimit("shadowed_messages_total",
		"Messages for which the limit had no permit, and that passed because its mode is shadow.")
	caughtUp = ofSubscription("caught_up", "1 if this replica has caught up with the producers.")
	exempt   = ofSubscription("exempt", "1 if nothing is charged now: caught up, or not limited.")
	inFlight = ofSubscription("in_flight_messages", "Messages delivered and not done.")
	backlog  = ofSubscription("backlog_messages",
		"Messages not yet read by this replica, if known.")

	granted = ofLimit("permits_granted_total",
		"Permits taken, including those given back later.")
	returned    = ofLimit("permits_returned_total", "Permits given back unused.")
	expired     = ofLimit("permits_expired_total", "Permits allocated and never used.")
	allocated   = ofLimit("permits_allocated", "Permits allocated and not yet taken.")
	allocations = ofLimit("allocations_total", "Batches received from the permit store.")
	rate        = ofLimit("limit_permits_per_second", "The limit, over all replicas.")
	rampRate    = ofLimit("limit_ramp_permits_per_second",
		"The limit on its ramp now, while it rises.")
	share   = ofLimit("limit_share_permits_per_second", "This replica's share; 0 if not known yet.")
	changed = ofLimit("limit_revision", "Revision of the policies at which the limit last changed.")

	requests = describe("permit_store_requests_total", "Requests sent to the permit store.")
	errs     = describe("permit_store_errors_total", "Requests that failed.")
	late     = describe("permit_store_late_replies_total",
		"Replies that came too late to be used.")
	damaged = describe("permit_store_damaged_total",
		"Requests that found stored state out of bounds, and replaced it.")
	permitsDown = describe("permit_store_unavailable", "1 if no request was answered lately.")
	latency     = describe("permit_store_latency_seconds",
		"How long calls with allocations take, averaged over the last few; 0: none in the last minute.")
	sourceDown = describe("policy_store_unavailable",
		"1 if the policy store's policies are not followed; the last ones apply.")
	heldBack = describe("policies_held",
		"1 if the policy store was read and is not followed: it is empty, another one, or older.")
	others = describe("other_policy_stores",
		"Other policy stores whose replicas use the same limits; the lower rates are in force.")
	revision = describe("policy_revision", "Revision of the policies in force.")
	policies = describe("policies", "Policies, quotas and settings in force.")
	invalid  = describe("invalid_policies", "Stored policies that are invalid and ignored.")
	info     = describe("info", "1; the labels describe this process.",
		"version", "cluster", "replica", "policies")
)

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		waits, waitTime, waiting, shadowed, caughtUp, exempt, inFlight, backlog,
		granted, returned, expired, allocated, allocations, rate, rampRate, share, changed,
		requests, errs, late, damaged, permitsDown, latency, sourceDown, heldBack, others, revision,
		policies, invalid, info,
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
		for limit, n := range sub.Shadowed {
			counter(shadowed, n, append(labels, string(limit))...)
		}
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
			counter(expired, l.Expired, labels...)
			gauge(allocated, float64(l.Held), labels...)
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
	counter(damaged, s.Permits.Damaged)
	gauge(permitsDown, flag(s.Permits.Unavailable))
	gauge(revision, float64(s.Revision))
	gauge(latency, s.Permits.Latency)
	gauge(sourceDown, flag(s.PolicyError != ""))
	gauge(heldBack, flag(s.PoliciesHeld))
	gauge(others, float64(len(s.Rivals)))
	gauge(policies, float64(s.Policies))
	gauge(invalid, float64(s.InvalidPolicies))
	gauge(info, 1, s.Version, s.Cluster, s.Replica, s.Identity)
}

// histogram converts the counts of single buckets to Prometheus's cumulative ones.
func histogram(h dispatch.Histogram, labels []string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(dispatch.WaitBuckets))
	sum := uint64(0)
	for i, bound := range dispatch.WaitBuckets {
		sum += uint64(h.Buckets[i])
		buckets[bound.Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(waitTime, uint64(h.Count), h.Sum.Seconds(), buckets,
		labels...)
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
