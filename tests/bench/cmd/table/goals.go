package main

import "fmt"

// goals are the bounds of our own figures.
var goals = goalList{
	{"tests/bench", "Off", "ns/op", atMost, 4},
	{"tests/bench", "Off", "allocs/permit", atMost, 0},
	{"tests/bench", "Admit", "ns/op", atMost, 12},
	{"tests/bench", "Admit", "allocs/permit", atMost, 0},
	{"tests/bench", "Admit64", "ns/op", atMost, 20},
	{"tests/bench", "Admit64", "allocs/permit", atMost, 0},
	{"tests/bench", "Batch64", "ns/permit", atMost, 0.5},
	{"tests/bench", "Deny", "ns/op", atMost, 5},
	{"tests/bench", "Return", "ns/op", atMost, 40},
	{"tests/bench", "Admit64BesideAdd", "x-add", atMost, 1.15},
	{"tests/bench", "ReturnShared/2", "ns/permit", atMost, 60},
	{"tests/bench", "ReturnShared/64", "ns/permit", atMost, 60},
	{"tests/bench", "ManyLimits/100", "x-cpu-of-x/time/rate", atMost, 1.5},
	{"tests/bench", "ManyLimits/100", "%-of-the-slowest-limit", atLeast, 99.5},
	{"tests/bench", "ManyLimits/1000", "x-cpu-of-x/time/rate", atMost, 1.5},
	{"tests/bench", "ManyLimits/1000", "%-of-the-slowest-limit", atLeast, 99.5},
	{"tests/bench", "ManyLimits/10000", "x-cpu-of-x/time/rate", atMost, 1.5},
	{"tests/bench", "ManyLimits/10000", "%-of-the-slowest-limit", atLeast, 99.5},
	{"tests/bench", "BusyServer", "%-goodput", atLeast, 90},
	{"tests/bench", "BusyServer", "%-busy", atMost, 5},
	{"tests/bench", "BusyServer", "%-regained", atLeast, 95},
	{"dispatch/permits/redis", "Allocation/8_replicas", "x-bare-redis-cpu", atMost, 4},
	{"dispatch/permits/redis", "Allocation/8_replicas", "us-of-client-cpu", atMost, 15},
	{"dispatch/permits/redis", "Allocation/1000_replicas", "x-bare-redis-cpu", atMost, 4},
	{"dispatch/permits/redis", "Allocation/1000_replicas", "us-of-client-cpu", atMost, 15},
	{"tests/kafka", "Unlimited/100B", "x-bare-cpu", atMost, 1.03},
	{"tests/kafka", "Unlimited/100B", "x-bare-speed-high", atLeast, 0.98},
	{"tests/kafka", "Unlimited/1024B", "x-bare-cpu", atMost, 1.03},
	{"tests/kafka", "Unlimited/1024B", "x-bare-speed-high", atLeast, 0.98},
	{"tests/kafka", "Franz/unlimited", "x-bare-speed", atLeast, 0.98},
	{"tests/kafka", "Franz/unreached", "x-bare-speed", atLeast, 0.95},
	{"tests/kafka", "ByteLimit", "%-of-limit", atLeast, 98},
	{"tests/kafka", "ByteLimit", "%-of-limit", atMost, 102},
	{"tests/kafka", "ByteLimit", "%-any-second", atMost, 110},
	{"tests/processes", "Saturated/1000", "%-of-limit", atLeast, 99.5},
	{"tests/processes", "Saturated/1000", "%-of-limit", atMost, 100.5},
	{"tests/processes", "Saturated/1000", "%-any-second", atMost, 103},
	{"tests/processes", "Saturated/1000", "%-least-share", atLeast, 11},
	{"tests/processes", "Saturated/1000", "%-most-share", atMost, 14},
	{"tests/processes", "Saturated/1000", "requests/message", atMost, 0.1},
	{"tests/processes", "Saturated/100000", "%-of-limit", atLeast, 99},
	{"tests/processes", "Saturated/100000", "%-of-limit", atMost, 101},
	{"tests/processes", "Saturated/100000", "requests/message", atMost, 0.01},
	{"tests/processes", "AllDemandOnOne", "%-of-limit", atLeast, 99},
	{"tests/processes", "AllDemandOnOne", "requests/message", atMost, 0.05},
	{"tests/processes", "DemandMoves", "%-of-limit-from-150ms-on", atLeast, 90},
	{"tests/processes", "QuietBesideGreedy", "ms-quiet-wait-p99", atMost, 5},
	{"tests/processes", "Strict/5", "ms-too-near", atMost, 2},
	{"tests/processes", "Strict/5", "%-of-limit", atLeast, 97},
	{"tests/processes", "Strict/5", "%-of-the-mean-the-fewest", atLeast, 80},
	{"tests/processes", "Weights", "%-off-its-weight", atMost, 1},
	{"tests/processes", "Reserved", "messages/s-of-520", atLeast, 515},
	{"tests/processes", "Reserved", "messages/s-of-520", atMost, 525},
	{"tests/processes", "PolicyChange", "ms-in-force-p99", atMost, 100},
	{"tests/pulsar", "PulsarOneConsumer", "%-of-limit", atLeast, 99},
	{"tests/pulsar", "PulsarOneConsumer", "%-of-limit", atMost, 101},
	{"tests/pulsar", "PulsarOneConsumer", "%-first-second", atMost, 103},
	{"tests/pulsar", "PulsarSubscriptions", "%-of-limit", atLeast, 99},
	{"tests/pulsar", "PulsarSubscriptions", "%-of-limit", atMost, 101},
	{"tests/pulsar", "PulsarSubscriptions", "%-share-off", atMost, 10},
	{"tests/pulsar", "PulsarPerSubscription", "%-of-limit", atLeast, 99},
	{"tests/pulsar", "PulsarPerSubscription", "%-of-limit", atMost, 101},
	{"tests/pulsar", "PulsarCaughtUp", "x-bare-p99", atMost, 1.5},
	{"tests/pulsar", "PulsarUnlimited", "x-bare-cpu", atMost, 1.03},
	{"tests/pulsar", "PulsarUnlimited", "x-bare-speed-high", atLeast, 0.98},
	{"tests/pulsar", "PulsarBytes", "%-of-limit", atLeast, 98},
	{"tests/pulsar", "PulsarBytes", "%-of-limit", atMost, 102},
	{"tests/numaflow", "NumaflowSource/100", "messages/s", atLeast, 99},
	{"tests/numaflow", "NumaflowSource/100", "messages/s", atMost, 101},
	{"tests/numaflow", "NumaflowSource/100", "most-in-1s", atMost, 225}, // twice, after a gap
	{"tests/numaflow", "NumaflowSource/1000", "messages/s", atLeast, 990},
	{"tests/numaflow", "NumaflowSource/1000", "messages/s", atMost, 1010},
	{"tests/numaflow", "NumaflowSource/1000", "most-in-100ms", atMost, 150},
	{"tests/numaflow", "NumaflowSource/1000", "first-second", atMost, 1030},
	{"tests/numaflow", "NumaflowGaps/unfilled", "messages/s", atLeast, 99},
	{"tests/numaflow", "NumaflowGaps/unfilled", "messages/s", atMost, 101},
	{"tests/numaflow", "NumaflowGaps/unfilled", "most-in-1s", atMost, 225},
	{"tests/numaflow", "NumaflowGaps/unfilled", "%-emptiest", atLeast, 80},
	{"tests/numaflow", "NumaflowGaps/replicas", "messages/s", atLeast, 495},
	{"tests/numaflow", "NumaflowGaps/replicas", "messages/s", atMost, 505},
	{"tests/numaflow", "NumaflowGaps/replicas", "most-in-1s", atMost, 1125},
	{"tests/numaflow", "NumaflowGaps/sink200ms", "messages/s", atLeast, 99},
	{"tests/numaflow", "NumaflowGaps/sink200ms", "messages/s", atMost, 101},
	{"tests/numaflow", "NumaflowGaps/sink200ms", "most-in-1s", atMost, 145},
	{"tests/numaflow", "NumaflowGaps/sink50ms", "messages/s", atLeast, 990},
	{"tests/numaflow", "NumaflowGaps/sink50ms", "messages/s", atMost, 1010},
	{"tests/numaflow", "NumaflowGaps/sink50ms", "most-in-1s", atMost, 1300},
	{"tests/numaflow", "NumaflowGaps/edge", "messages/s", atLeast, 99},
	{"tests/numaflow", "NumaflowGaps/edge", "messages/s", atMost, 101},
	{"tests/numaflow", "NumaflowGaps/edge", "%-emptiest", atLeast, 80},
	{"tests/numaflow", "NumaflowReplicas/redis", "messages/s", atLeast, 990},
	{"tests/numaflow", "NumaflowReplicas/redis", "messages/s", atMost, 1010},
	{"tests/numaflow", "NumaflowReplicas/redis", "most-in-1s", atMost, 1030},
	{"tests/numaflow", "NumaflowReplicas/nostore", "messages/s", atLeast, 990},
	{"tests/numaflow", "NumaflowReplicas/nostore", "messages/s", atMost, 1010},
	{"tests/numaflow", "NumaflowScaleDown/clean", "%-of-limit", atLeast, 99},
	{"tests/numaflow", "NumaflowScaleDown/kill", "%-of-limit", atLeast, 99},
	{"tests/numaflow", "NumaflowFew", "messages/s", atLeast, 1.95},
	{"tests/numaflow", "NumaflowFew", "messages/s", atMost, 2.05},
	{"tests/numaflow", "NumaflowFew", "least", atLeast, 7},
	{"tests/numaflow", "NumaflowFew", "s-to-stop", atMost, 5},
	{"tests/numaflow", "NumaflowMap/all", "useful/s", atLeast, 99},
	{"tests/numaflow", "NumaflowMap/all", "useful/s", atMost, 101},
	{"tests/numaflow", "NumaflowMap/half", "useful/s", atLeast, 99},
	{"tests/numaflow", "NumaflowMap/half", "useful/s", atMost, 101},
	{"tests/numaflow", "NumaflowSink", "messages/s", atLeast, 49.5},
	{"tests/numaflow", "NumaflowSink", "messages/s", atMost, 50.5},
	{"tests/numaflow", "NumaflowStore", "messages/s-away", atLeast, 99},
	{"tests/numaflow", "NumaflowStore", "messages/s-after", atLeast, 99},
	{"tests/numaflow", "NumaflowStore", "most-in-1s", atMost, 110},
	{"tests/numaflow", "NumaflowUnlimited", "x-bare-cpu", atMost, 1.05},
	{"tests/numaflow", "NumaflowUnlimited", "x-bare-speed-high", atLeast, 0.98},
	{"dispatch", "NoPolicy", "ns/op", atMost, 4},
	{"dispatch", "Admit", "ns/op", atMost, 12},
	{"dispatch", "Admit64Goroutines", "ns/op", atMost, 20},
	{"dispatch", "BatchOf64", "ns/message", atMost, 0.5},
	{"dispatch", "Return", "ns/op", atMost, 40},
	{"dispatch", "Deny", "ns/op", atMost, 5},
	{"dispatch", "FourLimits", "ns/op", atMost, 45},
	{"dispatch", "FourLimits", "allocs/op", atMost, 0},
	{"dispatch", "OneWaiter/1000", "%-of-limit", atLeast, 99},
	{"dispatch", "OneWaiter/10000", "%-of-limit", atLeast, 99},
	{"dispatch", "OneWaiter/100000", "%-of-limit", atLeast, 99},
	{"dispatch", "ManyTopics", "B/topic", atMost, 2048},
	{"dispatch", "ManyTopics", "%-of-a-core-idle", atMost, 1},
	{"dispatch", "ManyTopics", "requests-idle", atMost, 0},
	{"dispatch", "ReportOutcome", "ns/op", atMost, 15},
	{"dispatch", "ReportOutcome", "allocs/op", atMost, 0},
	{"dispatch/quota", "Decide/1000x100", "ns/op", atMost, 20_000_000},
	{"configstore/etcd", "Apply/10", "x-bare-speed-high", atLeast, 0.83}, // 1.2 times the cost
	{"configstore/etcd", "Apply/1000", "x-bare-speed-high", atLeast, 0.83},
	{"cmd/throttle-admin/internal/history", "History", "s", atMost, 1},
	{"cmd/throttle-admin/internal/doctor", "Doctor", "s", atMost, 3},
	{"dispatch/metrics", "Memory", "B/topic", atMost, 6144},
	{"cmd/throttle-admin/internal/cluster", "Update/others", "ms-of-cpu", atMost, 100},
	{"cmd/throttle-admin/internal/cluster", "Update/views", "ms-of-cpu", atMost, 100},
}

type goalList []struct {
	pkg, work, unit string
	bound           bound
	value           float64
}

type bound string

const (
	atMost  bound = "≤"
	atLeast bound = "≥"
)

// judge returns the goals of a row, with a note at those that the figure misses.
func (l goalList) judge(k row, v float64) (text string) {
	for _, g := range l {
		if g.pkg != k.pkg || g.work != k.work || g.unit != k.unit {
			continue
		}
		text += fmt.Sprintf("%s %s ", g.bound, figure(g.value))
		if g.bound == atMost && v > g.value || g.bound == atLeast && v < g.value {
			text += "**missed** "
		}
	}
	return text
}
