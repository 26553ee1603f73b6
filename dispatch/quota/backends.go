package quota

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

type backend struct {
	name  string
	zone  string
	load  Load
	at    float64 // when its last report arrived
	time  float64 // Report.Time of that report
	costs []cost
	index map[ID]int // into costs
	rest  float64    // cost of the ids that are not followed
	left  int        // number of these ids
}

// A cost is the cost of one id on one backend.
type cost struct {
	id     *id
	value  float64 // per second, in the last report
	recent float64 // value, averaged over the id's last few requests
}

// Report adds a backend's report. It refuses the whole report if any part is invalid, if it is
// older than the last one, or if its time is too far from now.
func (k *Keeper) Report(r Report, now float64) error {
	err := r.Validate(k.Zones, now)
	b := k.named[r.Backend]
	switch {
	case b != nil && r.Time < b.time:
		err = errors.Join(err, fmt.Errorf("time %v: is before the last report, %v", r.Time, b.time))
	case b == nil && len(k.backends) >= maxBackends:
		err = errors.Join(err, fmt.Errorf("is one of more than %d backends: report sums of several",
			maxBackends))
	}
	if err != nil {
		return fmt.Errorf("report of backend %.300q: %w", r.Backend, err)
	}
	if b == nil {
		b = &backend{name: r.Backend, index: map[ID]int{}}
		if k.named == nil {
			k.named = map[string]*backend{}
		}
		k.backends, k.named[r.Backend] = append(k.backends, b), b
	}
	b.zone, b.load, b.at, b.time = r.Zone, r.Load, now, r.Time
	b.take(k, r.Costs, now)
	return nil
}

// take replaces the backend's costs by those of a report.
func (b *backend) take(k *Keeper, costs map[ID]float64, now float64) {
	for i := range b.costs {
		b.costs[i].value = 0
	}
	b.rest, b.left = 0, 0
	kept := k.costliest(costs)
	for _, name := range slices.Sorted(maps.Keys(costs)) { // sorted, so that sums are reproducible
		i, known := b.index[name]
		if kept != nil && !kept[name] && !k.hasQuota(name) {
			b.rest += costs[name]
			b.left++
			continue
		}
		if !known {
			found := k.follow(name, now)
			if found == nil {
				b.rest += costs[name]
				b.left++
				continue
			}
			i = len(b.costs)
			b.index[name] = i
			b.costs = append(b.costs, cost{id: found})
		}
		c := &b.costs[i]
		if c.value = costs[name]; c.value > 0 {
			c.id.seen = now
		}
	}
}

// costliest returns the ids of a report that are followed whether or not they have a quota. Nil
// means all.
func (k *Keeper) costliest(costs map[ID]float64) map[ID]bool {
	limit := cmp.Or(k.MaxIDs, defaultMaxIDs)
	if len(costs) <= limit {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(costs), func(a, b ID) int {
		return cmp.Or(cmp.Compare(costs[b], costs[a]), cmp.Compare(a, b))
	})
	kept := make(map[ID]bool, limit)
	for _, name := range names[:limit] {
		kept[name] = true
	}
	return kept
}

// A Reader is an id that loads a backend near its target; FoundationDB calls it a busy reader.
type Reader struct {
	Backend  string  `json:"backend"`
	Zone     string  `json:"zone"`
	ID       ID      `json:"id"`
	Cost     float64 `json:"cost"`     // per second
	Busyness float64 `json:"busyness"` // part of the backend's cost, 0..1
	Ratio    float64 `json:"ratio"`    // part of its present load that the backend can bear
}

// Readers returns the ten costliest ids of each backend near its target, the costliest first.
func (k *Keeper) Readers(now float64) []Reader {
	var all []Reader
	for _, b := range k.backends {
		ratio, near := b.load.ratio()
		if !near || now-b.at > stale {
			continue
		}
		sum, from := b.sum(), len(all)
		for _, c := range b.costs {
			if c.value > 0 {
				all = append(all, Reader{b.name, b.zone, c.id.name, c.value, c.value / sum, ratio})
			}
		}
		costliestFirst := func(a, b Reader) int { return cmp.Compare(b.Cost, a.Cost) }
		slices.SortStableFunc(all[from:], costliestFirst)
		all = all[:min(len(all), from+maxReaders)]
	}
	return all
}

// A Backend is how a backend is that reports.
type Backend struct {
	Backend string  `json:"backend"`
	Zone    string  `json:"zone"`
	Load    Load    `json:"load"`
	Cost    float64 `json:"cost"`            // per second, of all ids
	Ratio   float64 `json:"ratio,omitempty"` // as in a Reader; 0 = it is not near its target
	Age     float64 `json:"age"`             // of the report, seconds
}

// Backends returns all backends whose reports count, the most loaded first.
func (k *Keeper) Backends(now float64) []Backend {
	var all []Backend
	for _, b := range k.backends {
		if now-b.at > stale {
			continue
		}
		ratio, _ := b.load.ratio()
		all = append(all, Backend{b.name, b.zone, b.load, b.sum(), ratio, now - b.at})
	}
	part := func(l Load) float64 { return l.Queue / max(l.Target, math.SmallestNonzeroFloat64) }
	slices.SortFunc(all, func(a, b Backend) int {
		return cmp.Or(cmp.Compare(part(b.Load), part(a.Load)), strings.Compare(a.Backend, b.Backend))
	})
	return all
}

// sum is the cost of all ids, per second.
func (b *backend) sum() float64 {
	sum := b.rest
	for _, c := range b.costs {
		sum += c.value
	}
	return sum
}

// LeftOut returns the number of ids of backends' reports that are not followed. They have no quota,
// and their cost counts as load by others.
func (k *Keeper) LeftOut() (n int) {
	for _, b := range k.backends {
		n += b.left
	}
	return n
}

// limit computes what a backend near its target allows each id that loads it. It uses recent costs,
// since longer averages come late. The caller passes the backends of a zone one after the other.
func (k *Keeper) limit(b *backend, now float64) {
	ratio, near := b.load.ratio()
	if !near || now-b.at > stale {
		return
	}
	sum, n := b.rest, float64(b.left)
	for _, c := range b.costs {
		if c.recent > 0 {
			sum += c.recent
			n++
		}
	}
	quotas, free := 0.0, 0.0 // of the ids that can be limited: total quotas, and cost left for them
	loads := func(c *cost) bool {
		return c.id.quota != nil && c.recent > 0 && c.recent*n >= significant*sum
	}
	for i := range b.costs {
		if c := &b.costs[i]; loads(c) {
			quotas += c.id.quota.Total
			free += ratio * c.recent
		}
	}
	for i := range b.costs {
		c := &b.costs[i]
		if !loads(c) {
			continue
		}
		limiting := ratio * c.id.recent
		if k.ShareBy != ByCurrent && quotas > 0 {
			limiting = free * c.id.quota.Total / quotas / c.recent * c.id.recent
		}
		if zones := c.id.zones; len(zones) > 0 && zones[len(zones)-1].Zone == b.zone {
			zones[len(zones)-1].Rate = min(zones[len(zones)-1].Rate, limiting)
		} else {
			c.id.zones = append(zones, ZoneLimit{b.zone, limiting})
		}
	}
}
