package sizing

import (
	"fmt"

	"github.com/dispatchthrottle/throttle/policy"
)

// The bounds of one Redis that is shared with nothing else.
const (
	MaxCPU         = 0.6    // cores, of the one that it uses: busy seconds take more
	MaxConnections = 10_000 // its default maxclients
	MaxBandwidth   = 60e6   // bytes a second in each direction: half of a 1 Gbit/s link
	MaxUpdates     = 150    // of one record, times a second: above it, replicas hinder each other
	MaxReplicaCPU  = 0.25   // cores
)

// Advice returns which needs are over a bound of one Redis or of one process, and what to change.
func (f Fleet) Advice(n Needs) (advice []string) {
	add := func(format string, args ...any) { advice = append(advice, fmt.Sprintf(format, args...)) }
	if u := f.Updates(); u > MaxUpdates {
		change := "use sharing.mode fair"
		if f.Sharing == policy.Split {
			change = "set sharing.replicas, which needs no heartbeats, or a longer sharing.poolTTL"
		}
		add("each limit's record is replaced %.0f times a second (more than %d), so that replicas "+
			"hinder each other: %s", u, MaxUpdates, change)
	}
	if refused := f.asked() / f.share(); f.Sharing == policy.Strict && refused > 2 {
		add("a permit takes %.0f requests, since more than %d callers wait for each limit: "+
			"set sharing.wait=queue, or use sharing.mode fair", refused, maxReserved)
	}
	if n.RedisCPU > MaxCPU {
		change := ""
		if f.Sharing == policy.Fair && f.share()*f.line() >= 1 {
			change = "set a longer round, which saves requests, or "
		}
		add("Redis needs %.0f %% of a core (more than %.0f %%): %suse a Redis Cluster, over which "+
			"limits spread", 100*n.RedisCPU, 100*MaxCPU, change)
	}
	if n.Connections > MaxConnections {
		add("Redis has up to %d connections (more than %d): raise its maxclients and its limit of "+
			"open files", n.Connections, MaxConnections)
	}
	if in := max(n.In, n.Out); in > MaxBandwidth {
		add("Redis receives or sends %.0f MB/s (more than %.0f MB/s), of which status records are "+
			"%.0f MB/s: use fewer limits in each replica, a faster network, or a Redis Cluster",
			in/1e6, MaxBandwidth/1e6, float64(f.Replicas)*f.published()*statusBytes*publishes/1e6)
	}
	if n.ReplicaCPU > MaxReplicaCPU {
		add("the Limiter of a replica needs %.0f %% of a core (more than %.0f %%): spread the limits "+
			"over more processes", 100*n.ReplicaCPU, 100*MaxReplicaCPU)
	}
	return advice
}
