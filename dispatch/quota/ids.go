package quota

import (
	"cmp"
	"math"
	"slices"
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
