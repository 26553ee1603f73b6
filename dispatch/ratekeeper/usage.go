package ratekeeper

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// parse reads the usage records that replicas have published. Of the reports that several processes
// keep of one backend, it returns the newest.
func parse(texts [][]byte) (usages []dispatch.Usage, faults []string) {
	for _, text := range texts {
		var u dispatch.Usage
		if err := json.Unmarshal(text, &u); err != nil {
			faults = append(faults, fmt.Sprintf("invalid usage record: %v", err))
			continue
		}
		usages = append(usages, u)
	}
	slices.SortFunc(usages, func(a, b dispatch.Usage) int { // sorted, so that sums are reproducible
		return cmp.Or(cmp.Compare(a.Replica, b.Replica), cmp.Compare(timeOf(b), timeOf(a)))
	})
	usages = slices.CompactFunc(usages, func(a, b dispatch.Usage) bool {
		return a.Replica == b.Replica && timeOf(a) > 0
	})
	return usages, faults
}

// senders counts the replicas, and the backends, that have sent usage records, sorted by name.
func senders(usages []dispatch.Usage) (n int) {
	for i, u := range usages {
		if i == 0 || u.Replica != usages[i-1].Replica {
			n++
		}
	}
	return n
}

// timeOf returns the time of a report over HTTP by its backend's clock, or 0 for a replica's
// record.
func timeOf(u dispatch.Usage) float64 {
	if len(u.Backends) == 0 {
		return 0
	}
	return u.Backends[0].Time
}

// add adds up the records of replicas. If they report a backend with different loads or zones, the
// worst load and the first zone count.
func add(usages []dispatch.Usage) (started map[quota.ID]float64, backends []quota.Report) {
	started = map[quota.ID]float64{}
	at := map[string]int{}
	for _, u := range usages {
		for id, rate := range u.Started {
			started[id] += rate
		}
		for _, b := range u.Backends {
			i, known := at[b.Backend]
			if !known {
				i = len(backends)
				at[b.Backend] = i
				backends = append(backends, quota.Report{
					Backend: b.Backend, Zone: b.Zone, Costs: map[quota.ID]float64{},
				})
			}
			sum := &backends[i]
			for id, cost := range b.Costs {
				sum.Costs[id] += cost
			}
			if worse(b.Load, sum.Load) {
				sum.Load = b.Load
			}
		}
	}
	return started, backends
}

// worse reports whether a is nearer to its target than b. Any load is worse than the zero Load.
func worse(a, b quota.Load) bool {
	if b == (quota.Load{}) || a == (quota.Load{}) {
		return b == (quota.Load{})
	}
	return (a.Queue-a.Target)/a.Spring > (b.Queue-b.Target)/b.Spring
}
