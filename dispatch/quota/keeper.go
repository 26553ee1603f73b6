package quota

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
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

type id struct {
	name    ID
	quota   *Quota
	started float64 // requests started per second, as last reported
	recent  float64 // started, averaged over the last few requests
	fresh   float64 // weight of the next report in recent
	average average
	target  Smoother
	inForce float64 // rate found by the last pass
	seen    float64 // when it last had requests or costs
	limited float64 // when a backend last limited it

	// Of the present pass:
	cost     float64     // per second
	backends int         // number of backends that it loads
	unsure   bool        // one of them has not reported since the last pass
	zones    []ZoneLimit // by name, until decide sorts them by rate
}

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
	if i.started = rate; rate > 0 {
		i.seen = now
	}
	return nil
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
			of := k.follow(name, now)
			if of == nil {
				b.rest += costs[name]
				b.left++
				continue
			}
			i = len(b.costs)
			b.index[name] = i
			b.costs = append(b.costs, cost{id: of})
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

// hasQuota reports whether the id has a quota.
func (k *Keeper) hasQuota(name ID) bool {
	i := k.ids[name]
	return i != nil && i.quota != nil
}

// follow is like id, but returns nil if too many ids are tracked.
func (k *Keeper) follow(name ID, now float64) *id {
	if len(k.ids) >= maxTracked && k.ids[name] == nil {
		return nil
	}
	return k.id(name, now)
}

// id returns the entry of an id, which it adds if there is none.
func (k *Keeper) id(name ID, now float64) *id {
	i := k.ids[name]
	if i == nil {
		i = &id{
			name: name, average: newAverage(), target: Smoother{Folding: pace},
			seen: now, limited: math.Inf(-1), fresh: 1,
		}
		if k.ids == nil {
			k.ids = map[ID]*id{}
		}
		k.ids[name] = i
	}
	return i
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
		sum := b.rest
		for _, c := range b.costs {
			sum += c.value
		}
		from := len(all)
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

// LeftOut returns the number of ids of backends' reports that are not followed. They have no quota,
// and their cost counts as load by others.
func (k *Keeper) LeftOut() (n int) {
	for _, b := range k.backends {
		n += b.left
	}
	return n
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

// freshness returns the weight of a report in an id's recent values, dt seconds after the previous
// report. Recent values cover about eight requests, so that an id stays limited in the seconds
// between two requests, in which it has no cost. From eight requests a second on, the last report
// counts alone, which follows the load fastest.
func (i *id) freshness(dt float64) float64 {
	rate := i.average.lately()
	if i.quota == nil || rate == 0 || rate >= recentRequests {
		return 1
	}
	return -math.Expm1(-dt / min(folding, recentRequests/rate-1))
}

// blend moves a recent value towards the last one by the weight fresh. The first value counts in
// full. A remainder below 0.001 becomes 0.
func blend(recent, value, fresh float64) float64 {
	if fresh == 1 || recent == 0 {
		return value
	}
	if recent += (value - recent) * fresh; recent < 1e-3 && value == 0 {
		return 0
	}
	return recent
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
		if of := c.id.zones; len(of) > 0 && of[len(of)-1].Zone == b.zone {
			of[len(of)-1].Rate = min(of[len(of)-1].Rate, limiting)
		} else {
			c.id.zones = append(of, ZoneLimit{b.zone, limiting})
		}
	}
}

// decide finds an id's rate. It ignores the worst zones, as many as ignored says.
func (i *id) decide(ignored int, now float64) Decision {
	average := cmp.Or(i.average.value, Page)
	d := Decision{
		ID: i.name, Quota: *i.quota, Backends: i.backends,
		Rate: i.average.lately(), Cost: i.cost, AverageCost: average, Assumed: i.average.value == 0,
		Reserved: i.quota.Reserved / average, Desired: i.quota.Total / average,
		Limiting: math.NaN(),
	}
	if i.unsure {
		d.Rate = i.started
	}
	d.Zones = slices.Clone(i.zones)
	if len(i.zones) > ignored {
		slices.SortFunc(i.zones, func(a, b ZoneLimit) int { return cmp.Compare(a.Rate, b.Rate) })
		d.Limiting = i.zones[ignored].Rate
	}
	d.Target = Target(d.Reserved, d.Desired, d.Limiting)
	if d.Busy = d.Limiting < d.Desired; d.Busy {
		i.limited = now
	}
	before := i.inForce
	calming := now-i.limited < calm && before > 0
	i.target.Set(d.Target, now)
	if calming && !d.Busy && d.Target > before {
		i.target.Reset(d.Target, now) // no backend limits it now: only maxGrowth does
	}
	d.Smoothed = i.target.Total(now)
	if upper := max(before*maxGrowth, d.Reserved); calming && d.Smoothed > upper {
		d.Smoothed = upper
		i.target.Reset(upper, now)
		i.target.Set(d.Target, now)
	}
	i.inForce = d.Smoothed
	return d
}
