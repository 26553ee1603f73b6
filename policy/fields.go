package policy

import (
	"slices"
	"time"
)

// Where a field may be set.
var (
	topics     = []Kind{ClusterKind, NamespaceKind, PatternKind, TopicKind, SubscriptionKind}
	limits     = slices.Insert(slices.Clone(topics), 1, TenantKind) // of aggregates too
	aggregates = []Kind{ClusterKind, TenantKind, NamespaceKind}
	patterns   = []Kind{PatternKind}
	ids        = []Kind{TenantKind, TagKind}
	clusters   = []Kind{ClusterKind}
)

// Bounds that importers need too.
const (
	MinPoolTTL = 500 * time.Millisecond
	MaxPoolTTL = 5 * time.Minute
	MinRamp    = time.Second // a ramp has steps of a second
	MaxRamp    = 24 * time.Hour
	MaxRampTTL = time.Hour // permit stores keep a silent ramp that long
)

const (
	hour = 3600                  // seconds: no burst is larger than an hour at the highest rate
	many = 1_000_000_000_000_000 // messages
)

// policyTable has a row for each field of a [Policy]. The fields of a group follow each other.
var policyTable = newTable([]row[Policy]{
	{
		name: "messageRate", isLimit: true, scopes: limits,
		value: at(rates(MaxMessageRate), func(p *Policy) *Rate { return &p.MessageRate }),
		help: "Messages per period; at least 1/h, at most 1000000/s. 0 means no limit; " +
			"to stop a scope, pause it.",
	},
	{
		name: "byteRate", isLimit: true, scopes: limits,
		value: at(byteRates(MaxByteRate), func(p *Policy) *Rate { return &p.ByteRate }),
		help:  "Bytes per period, at most 10^12 a second. 0 means no limit.",
	},
	{
		name: "burst", isLimit: true, scopes: limits, byDefault: "0",
		value: at(integers[int64](0, MaxMessageRate*hour),
			func(p *Policy) **int64 { return &p.Burst }),
		help: "Messages that an idle limit may save up. Only for sharing mode fair.",
	},
	{
		name: "byteBurst", isLimit: true, scopes: limits, byDefault: "0",
		value: at(integers[int64](0, MaxByteRate*hour),
			func(p *Policy) **int64 { return &p.ByteBurst }),
		help: "Bytes that an idle limit may save up.",
	},
	{
		name: "round", scopes: limits, byDefault: "100ms",
		value: at(durations(10*time.Millisecond, 10*time.Second),
			func(p *Policy) *Duration { return &p.Round }),
		help: "How long the batches of all replicas together last. A longer round takes " +
			"fewer requests to the permit store.",
	},
	{
		name: "mode", scopes: limits, byDefault: string(Enforce),
		value: at(choices(Enforce, Shadow), func(p *Policy) *Mode { return &p.Mode }),
		help: "shadow counts the messages that would wait for a limit, and lets them pass. It " +
			"applies to the rates of this scope; for a topic, also to those that it inherits. It " +
			"never applies to a rate that a more specific scope sets. maxInFlight and busy have " +
			"the mode that the topic or the subscription inherits.",
	},
	{
		name: "paused", scopes: topics, byDefault: "false",
		value: at(switches(), func(p *Policy) **bool { return &p.Paused }),
		help:  "true dispatches nothing. The commands pause and resume set it.",
	},
	{
		name: "onOutage", scopes: limits, byDefault: string(OutageShare),
		value: at(choices(OutageShare, OutageStop, OutageOpen),
			func(p *Policy) *OnOutage { return &p.OnOutage }),
		help: "While the permit store is unavailable: share continues at the last " +
			"known share, stop dispatches nothing (fail closed), open does not limit " +
			"(fail open).",
	},
	{
		name: "maxInFlight", scopes: topics, byDefault: "0",
		value: at(integers[int64](0, many), func(p *Policy) **int64 { return &p.MaxInFlight }),
		help: "Messages of a subscription that are delivered and not yet done, for each " +
			"replica; with Kafka, not yet committed. 0 means any number.",
	},
	{
		name: "weight", scopes: topics, byDefault: "1",
		value: at(decimals(0.1, 10), func(p *Policy) **float64 { return &p.Weight }),
		help: "Weight of a subscription in the limits that it shares; only the ratio of " +
			"weights counts. Limits whose sharing.mode is strict, split or groups ignore it.",
	},
	{
		name: "reserved", scopes: topics,
		value: at(rates(MaxMessageRate), func(p *Policy) *Rate { return &p.Reserved }),
		help: "Messages that a subscription is guaranteed of the limits that it shares, " +
			"before the rest is shared by weight. What it does not use goes to others. " +
			"Limits whose sharing.mode is strict, split or groups ignore it.",
	},
	{
		name: "reservedBytes", scopes: topics,
		value: at(byteRates(MaxByteRate), func(p *Policy) *Rate { return &p.ReservedBytes }),
		help:  "Bytes that a subscription is guaranteed.",
	},
	{
		name: "aggregate", scopes: aggregates, byDefault: "false",
		value: at(switches(), func(p *Policy) **bool { return &p.Aggregate }),
		help: "true: the rates limit all topics of the cluster or the namespace " +
			"together. A tenant's always do.",
	},
	{
		name: "priority", scopes: patterns, byDefault: "0",
		value: at(integers(-1_000_000, 1_000_000), func(p *Policy) **int { return &p.Priority }),
		help: "Of two patterns that match a topic, the one with the higher priority " +
			"wins, then the longer one.",
	},

	{
		name: "sharing.mode", scopes: limits, byDefault: string(Fair),
		value: at(choices(Fair, Strict, Split, Groups),
			func(p *Policy) *SharingMode { return &p.Sharing.Mode }),
		help: "How replicas share the message rate. fair: batches, by weight and " +
			"reserved minimums. strict: one message every 1/rate, without bursts. " +
			"split: the same part for each replica. groups: a part of each period for " +
			"each worker group, and what the others leave.",
	},
	{
		name: "sharing.maxReserved", scopes: limits, byDefault: "64",
		value: at(integers[int64](0, 1_000_000),
			func(p *Policy) **int64 { return &p.Sharing.MaxReserved }),
		help: "strict: slots allocated ahead, by all replicas together, but no more than " +
			"two seconds of them, or one. 0: a caller that finds no free slot backs off.",
	},
	{
		name: "sharing.wait", scopes: limits, byDefault: string(WaitBackoff),
		value: at(choices(WaitBackoff, WaitQueue),
			func(p *Policy) *WaitMode { return &p.Sharing.Wait }),
		help: "strict: a caller that finds no free slot backs off with jitter, or waits " +
			"in a FIFO queue.",
	},
	{
		name: "sharing.permitExpiry", scopes: limits,
		value: at(durations(minExpiry, time.Minute),
			func(p *Policy) *Duration { return &p.Sharing.PermitExpiry }),
		help: "strict: how late a slot may be used. Default: a hundredth of the period, " +
			"within 2ms..100ms.",
	},
	{
		name: "sharing.replicas", scopes: limits, byDefault: "0",
		value: at(integers[int64](0, 1_000_000),
			func(p *Policy) **int64 { return &p.Sharing.Replicas }),
		help: "split: the number of replicas. 0: they agree on it through the permit " +
			"store.",
	},
	{
		name: "sharing.groups", scopes: limits,
		value: at(names(), func(p *Policy) *[]string { return &p.Sharing.Groups }),
		help: "groups: the worker groups. Each gets the same part of a period's " +
			"messages.",
	},
	{
		name: "sharing.keepBack", scopes: limits, byDefault: "0.2",
		value: at(decimals(0, 1), func(p *Policy) **float64 { return &p.Sharing.KeepBack }),
		help: "groups: the part of its own that other worker groups leave to an idle " +
			"one.",
	},
	{
		name: "sharing.poolTTL", scopes: limits, byDefault: "5s",
		value: at(durations(MinPoolTTL, MaxPoolTTL),
			func(p *Policy) *Duration { return &p.Sharing.PoolTTL }),
		help: "split, groups: a replica that is silent for that long does not count.",
	},

	{
		name: "ramp.mode", scopes: limits, byDefault: string(RampScheduled),
		value: at(choices(RampScheduled, RampRelaxed, RampNone),
			func(p *Policy) *RampMode { return &p.Ramp.Mode }),
		help: "scheduled rises with time, relaxed only in seconds in which permits are " +
			"requested. none overrides the ramp of a wider scope.",
	},
	{
		name: "ramp.from", scopes: limits,
		value: at(rates(MaxMessageRate), func(p *Policy) *Rate { return &p.Ramp.From }),
		help: "Messages per period at the start of the ramp. Default: the rate divided " +
			"by the seconds of ramp.over.",
	},
	{
		name: "ramp.fromBytes", scopes: limits,
		value: at(byteRates(MaxByteRate), func(p *Policy) *Rate { return &p.Ramp.FromBytes }),
		help: "Bytes per period at the start of the ramp. Default: the rate divided by " +
			"the seconds of ramp.over.",
	},
	{
		name: "ramp.over", scopes: limits,
		value: at(durations(MinRamp, MaxRamp), func(p *Policy) *Duration { return &p.Ramp.Over }),
		help: "How long the rates take to rise to their values, in steps of a second. " +
			"Default: no ramp.",
	},
	{
		name: "ramp.ttl", scopes: limits, byDefault: "3m",
		value: at(durations(MinRamp, MaxRampTTL), func(p *Policy) *Duration { return &p.Ramp.TTL }),
		help:  "Silence after which the ramp starts again.",
	},

	{
		name: "caughtUp.throttle", scopes: topics, byDefault: "false",
		value: at(switches(), func(p *Policy) **bool { return &p.CaughtUp.Throttle }),
		help:  "true throttles subscriptions without a backlog too.",
	},
	{
		name: "caughtUp.backlog", scopes: topics, byDefault: "100",
		value: at(integers[int64](0, many), func(p *Policy) **int64 { return &p.CaughtUp.Backlog }),
		help: "Messages: a subscription with a backlog of at most that many is caught " +
			"up; above twice that it is behind again.",
	},

	{
		name: "busy.mode", scopes: topics, byDefault: string(BusyFraction),
		value: at(choices(BusyFraction, BusyTChannel, BusyNone),
			func(p *Policy) *BusyMode { return &p.Busy.Mode }),
		help: "How busy answers that handlers report lower a subscription's own limit: " +
			"by their fraction, as published with tchannel, or not at all (none).",
	},
	{
		name: "busy.outcomes", scopes: topics, byDefault: OutcomeBusy,
		value: at(names(OutcomeBusy, OutcomeFailed, OutcomeTimeout),
			func(p *Policy) *[]string { return &p.Busy.Outcomes }),
		help: "Which outcomes count as busy.",
	},
	{
		name: "busy.minRate", scopes: topics, byDefault: "1",
		value: at(decimals(0.01, 1000), func(p *Policy) **float64 { return &p.Busy.MinRate }),
		help:  "Messages a second that pass in any case.",
	},
	{
		name: "busy.tolerance", scopes: topics, byDefault: "0.01",
		value: at(decimals(0, 0.5), func(p *Policy) **float64 { return &p.Busy.Tolerance }),
		help:  "fraction: the share of busy answers that has no effect.",
	},
	{
		name: "busy.recoverRate", scopes: topics, byDefault: "3",
		value: at(decimals(0.01, 100), func(p *Policy) **float64 { return &p.Busy.RecoverRate }),
		help:  "tchannel: growth of the limit per second, as a multiple of it.",
	},
	{
		name: "busy.recoverValue", scopes: topics, byDefault: "0",
		value: at(decimals(0, MaxMessageRate),
			func(p *Policy) **float64 { return &p.Busy.RecoverValue }),
		help: "tchannel: growth of the limit per second, in messages a second; 0: " +
			"recoverRate applies.",
	},
})

// quotaTable has a row for each field of a [Quota].
var quotaTable = newTable([]row[Quota]{
	{
		name: "reserved", scopes: ids, byDefault: "0",
		value: at(throughputs(), func(q *Quota) **int64 { return &q.Reserved }),
		help:  "Cost a second that the id always has, in bytes; at most total.",
	},
	{
		name: "total", scopes: ids,
		value: at(throughputs(), func(q *Quota) **int64 { return &q.Total }),
		help: "Cost a second that the id never exceeds, in bytes. 0 dispatches nothing. " +
			"Without a total there is no quota.",
	},
	{
		name: "mode", scopes: ids,
		value: at(choices(Enforce, Shadow), func(q *Quota) *Mode { return &q.Mode }),
		help: "shadow computes and reports the rate, and limits nothing. Default: the mode of " +
			"quotaSettings.",
	},
})

// quotaSettingsTable has a row for each field of [QuotaSettings].
var quotaSettingsTable = newTable([]row[QuotaSettings]{
	{
		name: "mode", scopes: clusters, byDefault: string(Enforce),
		value: at(choices(Enforce, Shadow), func(s *QuotaSettings) *Mode { return &s.Mode }),
		help:  "The mode of quotas that set none.",
	},
	{
		name: "shareBy", scopes: clusters, byDefault: string(ShareByQuota),
		value: at(choices(ShareByQuota, ShareByCurrent),
			func(s *QuotaSettings) *ShareBy { return &s.ShareBy }),
		help: "How the ids that load a saturated backend share what it bears: quota divides it " +
			"by their total quotas, current slows each down by the same factor.",
	},
	{
		name: "capacity", scopes: clusters, byDefault: "0",
		value: at(throughputs(), func(s *QuotaSettings) **int64 { return &s.Capacity }),
		help: "Cost a second that all backends bear together, in bytes; no more may be reserved. " +
			"0 means unknown.",
	},
	{
		name: "zones", scopes: clusters,
		value: at(names(), func(s *QuotaSettings) *[]string { return &s.Zones }),
		help:  "The zones that backends may report. Default: any.",
	},
	{
		name: "ignoreZones", scopes: clusters, byDefault: "1",
		value: at(integers[int64](0, 100),
			func(s *QuotaSettings) **int64 { return &s.IgnoreZones }),
		help: "How many of the worst zones are ignored: their saturation has no effect.",
	},
})

// historySettingsTable has a row for each field of [HistorySettings].
var historySettingsTable = newTable([]row[HistorySettings]{
	{
		name: "reasonRequired", scopes: clusters, byDefault: "false",
		value: at(switches(), func(s *HistorySettings) **bool { return &s.ReasonRequired }),
		help:  "A change without a reason (--reason) is refused.",
	},
})
