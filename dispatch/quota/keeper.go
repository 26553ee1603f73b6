package quota

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// An ID is a throttling id: tenant:NAME or tag:NAME.
type ID string

// ShareBy selects how the ids that load a saturated backend share what it can bear.
type ShareBy string

// The ways to share.
const (
	ByQuota   ShareBy = "quota"   // in proportion to their total quotas
	ByCurrent ShareBy = "current" // all slow down by the same factor; a huge quota has no effect
)

// A Keeper collects reports on ids and backends and computes the rate of each id. The zero value is
// ready, with the defaults. It is not safe for concurrent use.
type Keeper struct {
	ShareBy     ShareBy  // default ByQuota
	IgnoreZones int      // number of the worst zones that are ignored; default 1, -1: none
	Zones       []string // in which backends may be; default any

	// MaxIDs bounds the ids without a quota that are followed from one report: the costliest. The
	// cost of the others counts as load by others. Default 1000.
	MaxIDs int

	decided  float64 // time of the last pass
	ids      map[ID]*id
	backends []*backend // in the order of their first reports
	named    map[string]*backend
}

const (
	// pace is the time over which targets are smoothed, in seconds. Ratios exaggerate a small
	// excess of a load over its target fourfold; with this pace, one pass corrects it.
	pace = 3.5

	maxGrowth      = 1.25    // of a rate in one pass, while backends limit it
	calm           = 10.0    // seconds after the last limit for which maxGrowth still applies
	expiry         = 240.0   // seconds without a report after which an id or a backend is forgotten
	stale          = 5.0     // seconds after which a backend's report no longer counts
	recentRequests = 8       // requests of an id over which its cost is averaged to limit it
	significant    = 0.1     // an id below this part of the mean cost of a backend is not limited
	maxAhead       = 5.0     // seconds that a report may be ahead of our clock
	maxCost        = 1 << 53 // of a report, and the highest rate
	maxReaders     = 10      // of a backend
	maxTracked     = 20_000  // ids without a quota, over all backends
	maxBackends    = 20_000  // of which reports are kept
	defaultMaxIDs  = 1000
	defaultIgnored = 1 // zones
)

// SetQuotas replaces all quotas. An id without one is not limited.
func (k *Keeper) SetQuotas(quotas map[ID]Quota, now float64) error {
	var errs []error
	for name, q := range quotas {
		if err := q.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for name, i := range k.ids {
		if _, ok := quotas[name]; !ok && i.quota != nil {
			i.quota, i.target, i.inForce = nil, Smoother{Folding: pace}, 0
			i.started, i.average = 0, newAverage() // its requests are no longer counted
		}
	}
	for name, q := range quotas {
		if i := k.id(name, now); i.quota == nil || *i.quota != q {
			i.quota = &q
			i.target, i.inForce = Smoother{Folding: pace}, 0 // a new quota applies at once
		}
	}
	return nil
}

// Started reports the requests per second that all replicas together have started lately for an id.
func (k *Keeper) Started(name ID, rate, now float64) error {
	if !(rate >= 0 && rate <= maxCost) {
		return fmt.Errorf("%s: rate %v: is invalid: want 0 to %d", name, rate, int64(maxCost))
	}
	i := k.follow(name, now)
	if i == nil {
		return nil
	}
	i.started = rate
	if rate > 0 {
		i.seen = now
	}
	return nil
}

// Resume continues with the average cost and the rate that another Keeper has found for an id with
// a quota. It ignores invalid values, and caps the rate at what the quota allows now.
func (k *Keeper) Resume(name ID, average, rate, now float64) {
	i := k.ids[name]
	if i == nil || i.quota == nil || !(average >= Page && average <= maxCost && rate > 0) {
		return
	}
	i.average.value = average
	i.inForce = min(rate, i.quota.Total/average)
	i.target.Reset(i.inForce, now)
}

// Decide runs one pass: it finds the rates of all ids with a quota, sorted by name. It forgets ids
// and backends that have not reported for a long time.
func (k *Keeper) Decide(now float64) []Decision {
	k.forget(now)
	k.sum(now)
	byZone := func(a, b *backend) int { return cmp.Compare(a.zone, b.zone) }
	for _, b := range slices.SortedStableFunc(slices.Values(k.backends), byZone) {
		k.limit(b, now)
	}
	var all []Decision
	for _, name := range slices.Sorted(maps.Keys(k.ids)) {
		if i := k.ids[name]; i.quota != nil {
			all = append(all, i.decide(k.ignored(), now))
		}
	}
	return all
}

// Tracked returns the number of ids that are known.
func (k *Keeper) Tracked() int { return len(k.ids) }

// ignored returns the number of zones to ignore.
func (k *Keeper) ignored() int {
	return max(0, cmp.Or(k.IgnoreZones, defaultIgnored))
}

// forget removes the backends that have not reported, and the ids without a quota, requests or
// costs, for expiry.
func (k *Keeper) forget(now float64) {
	silent := func(b *backend) bool { return now-b.at > expiry }
	k.backends = slices.DeleteFunc(k.backends, silent)
	maps.DeleteFunc(k.named, func(_ string, b *backend) bool { return silent(b) })
	before := len(k.ids)
	maps.DeleteFunc(k.ids, func(_ ID, i *id) bool { return i.quota == nil && now-i.seen > expiry })
	if len(k.ids) == before {
		return
	}
	for _, b := range k.backends {
		b.costs = slices.DeleteFunc(b.costs, func(c cost) bool { return k.ids[c.id.name] == nil })
		clear(b.index)
		for i, c := range b.costs {
			b.index[c.id.name] = i
		}
	}
}

// sum adds up the costs of each id and updates its average. If a backend has not reported since the
// last pass, the averages of its ids stay as they were.
func (k *Keeper) sum(now float64) {
	for _, i := range k.ids {
		i.cost, i.backends, i.unsure, i.zones = 0, 0, false, i.zones[:0]
		i.recent = blend(i.recent, i.started, i.fresh)
	}
	for _, b := range k.backends {
		reported := b.at > k.decided
		for i := range b.costs {
			c := &b.costs[i]
			if reported {
				c.recent = blend(c.recent, c.value, c.id.fresh)
			}
			if c.value > 0 {
				c.id.unsure = c.id.unsure || !reported
				c.id.cost += c.value
				c.id.backends++
			}
		}
	}
	last := k.decided
	k.decided = now
	for _, i := range k.ids {
		if !i.unsure && i.average.measure(i.started, i.cost, now) {
			i.target, i.inForce = Smoother{Folding: pace}, 0 // the old rate was not based on costs
		}
		if now-i.seen > expiry {
			i.average = newAverage()
		}
		i.fresh = i.freshness(now - last)
	}
}
