package quota

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// An ID is a throttling id: tenant:NAME, or tag:NAME.
type ID string

// ShareBy is how those who load a saturated backend share what it can bear.
type ShareBy string

// The ways to share.
const (
	ByQuota   ShareBy = "quota"   // by their total quotas
	ByCurrent ShareBy = "current" // each slows down by the same factor, so that a huge quota is no advantage
)

// A Keeper is what is known of ids and backends, and finds the rates that follow. The zero value is ready, with the defaults.
// It is not safe for concurrent use.
type Keeper struct {
	ShareBy     ShareBy  // default ByQuota
	IgnoreZones int      // the worst zones, whose trouble is their own; default 1, -1: none
	MostIDs     int      // of a backend's report: the costliest are followed, and all that have a quota; the cost of the rest counts as load of others; default 1000
	Zones       []string // those that backends may be in; default any

	decided  float64 // the last pass
	ids      map[ID]*id
	backends []*backend // in the order in which they were first heard of
}

const (
	pace           = 3.5   // seconds, of targets: so that a load a little over its target, of which ratios make four times that, is right in one pass
	mostGrowth     = 1.25  // of a rate in one pass, while backends limit it
	calm           = 10.0  // seconds after the last limit, in which it grows no faster
	expiry         = 240.0 // seconds without a word, after which an id or a backend is forgotten
	stale          = 5.0   // seconds after which a backend's report counts no more
	recentRequests = 8     // of an id, over which its cost is averaged to limit it
	significant    = 0.1   // part of the mean cost of those on a backend, under which an id is not what loads it
	mostAhead      = 5.0   // seconds that a report may be ahead of our clock
	mostCost       = 1 << 53
	mostReaders    = 10     // of a backend
	mostIDs        = 20_000 // in all, of those without a quota
	defaultMost    = 1000
	defaultZones   = 1
)

type id struct {
	name    ID
	quota   *Quota
	started float64 // requests a second, as last heard
	recent  float64 // the same over the last few requests
	fresh   float64 // weight of the next report in recent
	average average
	target  Smoother
	inForce float64 // the rate found by the last pass
	seen    float64 // when there was something
	limited float64 // when a backend last limited it

	// Of this pass:
	cost     float64     // a second
	backends int         // that it loads
	unsure   bool        // one of them was not heard of since the last pass
	zones    []ZoneLimit // by name, until the decision
}

type backend struct {
	name  string
	zone  string
	load  Load
	at    float64 // when its last report came, and
	time  float64 // what time that had
	costs []cost
	index map[ID]int
	rest  float64 // cost of those that are not followed, and
	left  int     // how many they are
}

// A cost is that of an id on a backend.
type cost struct {
	id     *id
	value  float64 // a second, by the last report
	recent float64 // the same over the id's last few requests
}

// A Report is what a backend says of itself.
type Report struct {
	Backend string         `json:"backend"`
	Zone    string         `json:"zone"` // those in one may fail together
	Load    Load           `json:"load"`
	Costs   map[ID]float64 `json:"costs"` // of each id, a second; one that is missing has none
	Time    float64        `json:"time"`  // of it
}

// SetQuotas has the quotas be those given: an id without one is not limited.
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
			i.started, i.average = 0, newAverage() // nobody counts its requests any more
		}
	}
	for name, q := range quotas {
		if i := k.id(name, now); i.quota == nil || *i.quota != q {
			i.quota, i.target, i.inForce = &q, Smoother{Folding: pace}, 0 // a new quota holds at once
		}
	}
	return nil
}

// Started says how many requests a second an id has begun lately, of all replicas together.
func (k *Keeper) Started(name ID, rate, now float64) error {
	if !(rate >= 0 && rate <= mostCost) {
		return fmt.Errorf("%s: rate %v: is no number from 0 to %d", name, rate, int64(mostCost))
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

// MaxName is the most bytes of a name of a backend or a zone.
const MaxName = 255

// Validate returns all that is wrong with a report at now, in a cluster that declares these zones; none: any.
func (r Report) Validate(zones []string, now float64) error {
	errs := []error{r.Load.Validate()}
	if r.Backend == "" || r.Zone == "" || len(r.Backend) > MaxName || len(r.Zone) > MaxName {
		errs = append(errs, fmt.Errorf("backend, zone: both need a name of 1 to %d bytes", MaxName))
	} else if len(zones) > 0 && !slices.Contains(zones, r.Zone) {
		errs = append(errs, fmt.Errorf("zone %q: is none of %q, which the cluster's policy declares", r.Zone, zones))
	}
	switch {
	case r.Time <= now+mostAhead && r.Time >= now-stale:
	case r.Time == 0:
		errs = append(errs, fmt.Errorf("time 0: is missing: send when the report was made, in seconds of Unix time, such as %.0f", now))
	default:
		errs = append(errs, fmt.Errorf("time %v: is %.3g s from now: check the backend's clock", r.Time, r.Time-now))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Costs)) {
		if c := r.Costs[name]; !(c >= 0 && c <= mostCost) {
			errs = append(errs, fmt.Errorf("cost of %.300s, %v: is no number from 0 to %d", name, c, int64(mostCost)))
		}
	}
	return errors.Join(errs...)
}

// Report takes a backend's report in. It is refused whole if there is a fault in it, or if it is older than the last one, or not of this time.
func (k *Keeper) Report(r Report, now float64) error {
	err := r.Validate(k.Zones, now)
	var b *backend
	if i := slices.IndexFunc(k.backends, func(b *backend) bool { return b.name == r.Backend }); i >= 0 {
		b = k.backends[i]
	}
	if b != nil && r.Time < b.time {
		err = errors.Join(err, fmt.Errorf("time %v: is before that of the last report, %v", r.Time, b.time))
	}
	if err != nil {
		return fmt.Errorf("report of backend %.300q: %w", r.Backend, err)
	}
	if b == nil {
		b = &backend{name: r.Backend, index: map[ID]int{}}
		k.backends = append(k.backends, b)
	}
	b.zone, b.load, b.at, b.time = r.Zone, r.Load, now, r.Time
	b.take(k, r.Costs, now)
	return nil
}

// take takes the costs of a report in.
func (b *backend) take(k *Keeper, costs map[ID]float64, now float64) {
	for i := range b.costs {
		b.costs[i].value = 0
	}
	b.rest, b.left = 0, 0
	kept := k.costliest(costs)
	for _, name := range slices.Sorted(maps.Keys(costs)) { // in order, so that the same reports give the same sums
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

// costliest are the ids of a report that are followed whether or not they have a quota; nil: all.
func (k *Keeper) costliest(costs map[ID]float64) map[ID]bool {
	most := cmp.Or(k.MostIDs, defaultMost)
	if len(costs) <= most {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(costs), func(a, b ID) int { return cmp.Or(cmp.Compare(costs[b], costs[a]), cmp.Compare(a, b)) })
	kept := make(map[ID]bool, most)
	for _, name := range names[:most] {
		kept[name] = true
	}
	return kept
}

// hasQuota reports whether the id has a quota.
func (k *Keeper) hasQuota(name ID) bool {
	i := k.ids[name]
	return i != nil && i.quota != nil
}

// follow is id, but nil if there are too many.
func (k *Keeper) follow(name ID, now float64) *id {
	if len(k.ids) >= mostIDs && k.ids[name] == nil {
		return nil
	}
	return k.id(name, now)
}

func (k *Keeper) id(name ID, now float64) *id {
	i := k.ids[name]
	if i == nil {
		i = &id{name: name, average: newAverage(), target: Smoother{Folding: pace}, seen: now, limited: math.Inf(-1), fresh: 1}
		if k.ids == nil {
			k.ids = map[ID]*id{}
		}
		k.ids[name] = i
	}
	return i
}

// A Reader is one whose part of a busy backend's load is more than nothing.
type Reader struct {
	Backend  string  `json:"backend"`
	Zone     string  `json:"zone"`
	ID       ID      `json:"id"`
	Cost     float64 `json:"cost"`     // a second
	Busyness float64 `json:"busyness"` // its part of the backend's cost, 0..1
	Ratio    float64 `json:"ratio"`    // of its present load that the backend can bear
}

// Readers are those who load the backends that are near their targets, the ten costliest of each backend, in that order.
func (k *Keeper) Readers(now float64) []Reader {
	var all []Reader
	for _, b := range k.backends {
		ratio, near := b.load.Ratio()
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
		slices.SortStableFunc(all[from:], func(a, b Reader) int { return cmp.Compare(b.Cost, a.Cost) })
		all = all[:min(len(all), from+mostReaders)]
	}
	return all
}

// LeftOut is how many ids of backends' reports are not followed. They have no quota, and their cost counts as load of others.
func (k *Keeper) LeftOut() (n int) {
	for _, b := range k.backends {
		n += b.left
	}
	return n
}

// Resume goes on with what another Keeper has found for an id that has a quota.
// What makes no sense is left, and no rate is above what the quota is worth now.
func (k *Keeper) Resume(name ID, average, rate, now float64) {
	if i := k.ids[name]; i != nil && i.quota != nil && average >= Page && average <= mostCost && rate > 0 {
		i.average.value = average
		i.inForce = min(rate, i.quota.Total/average)
		i.target.Reset(i.inForce, now)
	}
}

// A Decision is the rate found for an id, with all it follows from. Rates are requests a second, costs bytes a second; a rate that there is
// none of is NaN.
type Decision struct {
	ID          ID      `json:"id"`
	Rate        float64 `json:"rate"`        // of requests, lately
	Cost        float64 `json:"cost"`        // of them all
	AverageCost float64 `json:"averageCost"` // of one, bytes
	Quota       Quota   `json:"quota"`
	Reserved    float64 `json:"reserved"` // the quotas, as rates
	Desired     float64 `json:"desired"`
	Limiting    float64 `json:"-"`        // what the backends can bear; in JSON null where there is none
	Target      float64 `json:"target"`   // found now
	Smoothed    float64 `json:"smoothed"` // in force
	Busy        bool    `json:"busy"`     // limited by a backend
	Backends    int     `json:"backends"` // that it loads
	Assumed     bool    `json:"assumed"`  // AverageCost: nobody knows yet
	Shadow      bool    `json:"shadow"`   // it limits nothing: by whoever obeys, the Keeper knows of none

	Zones []ZoneLimit `json:"zones,omitempty"` // what those of each zone can bear of it that are near their targets, by name
}

// A ZoneLimit is what the backends of a zone can bear of an id, in requests a second.
type ZoneLimit struct {
	Zone string  `json:"zone"`
	Rate float64 `json:"rate"`
}

// A plain Decision has no methods.
type plainDecision Decision

type decisionJSON struct {
	plainDecision
	Limiting *float64 `json:"limiting"`
}

// MarshalJSON writes a limiting rate that there is none of as null.
func (d Decision) MarshalJSON() ([]byte, error) {
	j := decisionJSON{plainDecision: plainDecision(d)}
	if !math.IsNaN(d.Limiting) {
		j.Limiting = &d.Limiting
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (d *Decision) UnmarshalJSON(text []byte) error {
	var j decisionJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	*d = Decision(j.plainDecision)
	if d.Limiting = math.NaN(); j.Limiting != nil {
		d.Limiting = *j.Limiting
	}
	return nil
}

// Decide finds the rates of all ids that have a quota, by name, and forgets whom nothing was heard of for long.
func (k *Keeper) Decide(now float64) []Decision {
	k.forget(now)
	k.sum(now)
	for _, b := range slices.SortedStableFunc(slices.Values(k.backends), func(a, b *backend) int { return cmp.Compare(a.zone, b.zone) }) {
		k.limit(b, now)
	}
	var all []Decision
	for _, name := range slices.Sorted(maps.Keys(k.ids)) {
		if i := k.ids[name]; i.quota != nil {
			all = append(all, i.decide(k.zones(), now))
		}
	}
	return all
}

// Tracked is how many ids something is known of.
func (k *Keeper) Tracked() int { return len(k.ids) }

func (k *Keeper) zones() int {
	return max(0, cmp.Or(k.IgnoreZones, defaultZones))
}

func (k *Keeper) forget(now float64) {
	k.backends = slices.DeleteFunc(k.backends, func(b *backend) bool { return now-b.at > expiry })
	some := false
	for name, i := range k.ids {
		if i.quota == nil && now-i.seen > expiry {
			some = true
			delete(k.ids, name)
		}
	}
	if !some {
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

// sum adds up the costs of the ids, and finds their averages. While a backend is not heard of between passes, those of its ids stay as they were.
func (k *Keeper) sum(now float64) {
	for _, i := range k.ids {
		i.cost, i.backends, i.unsure, i.zones = 0, 0, false, i.zones[:0]
		i.recent = blend(i.recent, i.started, i.fresh)
	}
	for _, b := range k.backends {
		heard := b.at > k.decided
		for i := range b.costs {
			c := &b.costs[i]
			if heard {
				c.recent = blend(c.recent, c.value, c.id.fresh)
			}
			if c.value > 0 {
				c.id.unsure = c.id.unsure || !heard
				c.id.cost += c.value
				c.id.backends++
			}
		}
	}
	last := k.decided
	k.decided = now
	for _, i := range k.ids {
		if !i.unsure && i.average.measure(i.started, i.cost, now) {
			i.target, i.inForce = Smoother{Folding: pace}, 0 // what it was is of no account, as it followed no cost
		}
		if now-i.seen > expiry {
			i.average = newAverage()
		}
		i.fresh = i.freshness(now - last)
	}
}

// freshness is the weight of a report in an id's recent values, dt seconds after the one before.
// They cover about eight requests, so that an id that costs nothing for some seconds between two
// requests is limited in those, too. From eight requests a second on they are those of the last
// report, which follow the load fastest.
func (i *id) freshness(dt float64) float64 {
	rate := i.average.lately()
	if i.quota == nil || rate == 0 || rate >= recentRequests {
		return 1
	}
	return -math.Expm1(-dt / min(folding, recentRequests/rate-1))
}

// blend moves a recent value towards the last one. The first value counts in full; a remainder below 0.001 is none.
func blend(recent, value, fresh float64) float64 {
	if fresh == 1 || recent == 0 {
		return value
	}
	if recent += (value - recent) * fresh; recent < 1e-3 && value == 0 {
		return 0
	}
	return recent
}

// limit finds what a backend near its target lets each id that loads it have: from recent costs, as
// longer averages come late. The backends of one zone come one after the other.
func (k *Keeper) limit(b *backend, now float64) {
	ratio, near := b.load.Ratio()
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
	quotas, free := 0.0, 0.0 // of those who can be limited, and what they may go on with
	loads := func(c *cost) bool { return c.id.quota != nil && c.recent > 0 && c.recent*n >= significant*sum }
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

// decide finds an id's rate, of which the worst zones are ignored.
func (i *id) decide(ignored int, now float64) Decision {
	average := cmp.Or(i.average.value, Page)
	d := Decision{
		ID: i.name, Rate: i.average.lately(), Cost: i.cost, AverageCost: average, Quota: *i.quota, Backends: i.backends,
		Assumed:  i.average.value == 0,
		Reserved: i.quota.Reserved / average, Desired: i.quota.Total / average, Limiting: math.NaN(),
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
	if i.target.Set(d.Target, now); !d.Busy && now-i.limited < calm && d.Target > before && before > 0 {
		i.target.Reset(d.Target, now) // what no backend limits grows as fast as it may
	}
	d.Smoothed = i.target.Total(now)
	if most := max(before*mostGrowth, d.Reserved); now-i.limited < calm && d.Smoothed > most && before > 0 {
		d.Smoothed = most
		i.target.Reset(most, now)
		i.target.Set(d.Target, now)
	}
	i.inForce = d.Smoothed
	return d
}
