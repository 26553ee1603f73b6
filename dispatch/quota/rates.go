package quota

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/policy"
)

// Rates are the rates that a ratekeeper has put in force. As JSON, they are the head of what it
// writes; each rate is a row of its own. Unless its last head is [Rates.Old], a replica ignores a
// head that is [Rates.Before] it.
type Rates struct {
	Epoch   int64   `json:"epoch"`   // of the policies whose quotas these are
	Term    int64   `json:"term"`    // of the ratekeeper's election
	Keeper  string  `json:"keeper"`  // name of the ratekeeper
	Time    float64 `json:"time"`    // on the permit store's clock, seconds
	Version int64   `json:"version"` // changes when a rate does

	// Rates has the ids that were read. An id of unknown cost has the zero Rate, and its total.
	Rates map[ID]Rate `json:"-"`
}

// Before reports whether the rates are of an earlier epoch than o or, in the same epoch, of an
// earlier term. Terms start again with the policy store that counts them, and epochs do not.
func (r Rates) Before(o Rates) bool {
	return cmp.Or(cmp.Compare(r.Epoch, o.Epoch), cmp.Compare(r.Term, o.Term)) < 0
}

// Same reports whether the rates have not changed since o: neither the version nor who writes.
func (r Rates) Same(o Rates) bool {
	return r.Epoch == o.Epoch && r.Term == o.Term && r.Keeper == o.Keeper && r.Version == o.Version
}

// A Rate is the rate of one throttling id. The zero Rate is that of an id of unknown cost.
type Rate struct {
	Rate    float64 `json:"rate"`    // messages a second
	Average float64 `json:"average"` // cost of a message, bytes
}

// ParseRates reads a head; no text is no head. One that no ratekeeper writes is an error.
func ParseRates(text []byte) (r Rates, err error) {
	if len(text) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return Rates{}, err
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"epoch", float64(r.Epoch)}, {"term", float64(r.Term)}, {"time", r.Time},
		{"version", float64(r.Version)},
	} {
		if !bounded(f.value) {
			return Rates{}, fmt.Errorf("%s %v: is invalid: want 0 to %d", f.name, f.value, int64(maxCost))
		}
	}
	return r, nil
}

// ParseRate reads a row; no text is the zero Rate. One that no ratekeeper writes is an error.
func ParseRate(text []byte) (r Rate, err error) {
	if len(text) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return Rate{}, err
	}
	if !bounded(r.Rate) || !bounded(r.Average) {
		return Rate{}, fmt.Errorf("rate %v, average %v: is invalid: want 0 to %d",
			r.Rate, r.Average, int64(maxCost))
	}
	return r, nil
}

func bounded(x float64) bool { return 0 <= x && x <= maxCost }

// RatesHold is how long rates stay in force that no ratekeeper renews. After that, an id has its
// reserved rate or, if it has none, its total.
const RatesHold = time.Minute

// AssumedCost is the cost of a message while the average is unknown, in bytes: one written page.
const AssumedCost = WriteFactor * Page

// Of returns the rate of an id with this quota, in messages a second, at now on the permit store's
// clock. An id of unknown cost has its total, at [AssumedCost]. If the record is [Rates.Old], the
// rate is the reserved one or, if there is none, the total. In shadow mode it is [busy.Max].
func (r Rates) Of(id policy.Scope, q policy.EffectiveQuota, now float64) float64 {
	found := r.Rates[ID(id.String())]
	switch old := r.Old(now); {
	case q.Shadow:
		return busy.Max
	case found != (Rate{}) && !old:
		return found.Rate
	case old && q.Reserved > 0:
		return r.Reserved(id, q)
	}
	return float64(q.Total) / r.Average(id)
}

// Reserved returns the rate that an id with this quota has however busy its backends are, in
// messages a second. In shadow mode it is 0.
func (r Rates) Reserved(id policy.Scope, q policy.EffectiveQuota) float64 {
	if q.Shadow {
		return 0
	}
	return float64(q.Reserved) / r.Average(id)
}

// Average returns the cost of a message of an id, in bytes: [AssumedCost] while it is unknown.
func (r Rates) Average(id policy.Scope) float64 {
	if found := r.Rates[ID(id.String())]; found != (Rate{}) {
		return max(Page, found.Average)
	}
	return AssumedCost
}

// Read reports whether the rate of an id was read, if it has one.
func (r Rates) Read(id policy.Scope) bool {
	_, ok := r.Rates[ID(id.String())]
	return ok
}

// Old reports whether the record is older than [RatesHold] at now on the permit store's clock. A
// record that far in the future is old, too: the clock was stepped back.
func (r Rates) Old(now float64) bool { return math.Abs(now-r.Time) > RatesHold.Seconds() }
