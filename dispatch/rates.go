package dispatch

import (
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// Rates are those that a ratekeeper found. A record that is not [Rates.Old] is followed only by one of a term that is no older.
type Rates struct {
	Identity string            `json:"identity"` // of the policy store: terms of different ones cannot be compared
	Term     int64             `json:"term"`     // of the ratekeeper's election
	Keeper   string            `json:"keeper"`   // its name
	Time     float64           `json:"time"`     // on the permit store's clock, seconds
	Rates    map[quota.ID]Rate `json:"rates"`    // of ids whose costs are known; the others have their totals
}

// A Rate is what one throttling id may do.
type Rate struct {
	Rate    float64 `json:"rate"`    // messages a second
	Average float64 `json:"average"` // cost of one, bytes
}

// A Usage is what one replica's throttling ids have begun and cost lately.
type Usage struct {
	Replica  string               `json:"replica"`
	Started  map[quota.ID]float64 `json:"started,omitempty"` // messages a second
	Backends []quota.Report       `json:"backends,omitempty"`
}

// RatesHold is for how long rates hold that no ratekeeper confirms; then an id has what is reserved for it or, if nothing is, its total.
const RatesHold = time.Minute

// AssumedCost is that of a message of which nobody has heard yet, bytes: a page, written.
const AssumedCost = quota.WriteFactor * quota.Page

// Of is what an id may do by its quota, in messages a second, at now on the permit store's clock. Of an id whose costs nobody knows it is the total, as if each
// message wrote a page. What nobody has confirmed for [RatesHold] is what is reserved or, if nothing is, the total. In shadow it has no bound.
func (r Rates) Of(id policy.Scope, q policy.Quota, now float64) float64 {
	found, used := r.Rates[quota.ID(id.String())]
	switch old := r.Old(now); {
	case q.Shadow:
		return busy.Max
	case used && !old:
		return found.Rate
	case old && q.Reserved > 0:
		return r.Reserved(id, q)
	}
	return float64(q.Total) / r.Average(id)
}

// Reserved is what an id always may do by its quota, in messages a second, however busy what it loads is; 0 in shadow.
func (r Rates) Reserved(id policy.Scope, q policy.Quota) float64 {
	if q.Shadow {
		return 0
	}
	return float64(q.Reserved) / r.Average(id)
}

// Average is what a message of an id costs, bytes: [AssumedCost] if nobody knows.
func (r Rates) Average(id policy.Scope) float64 {
	if found, used := r.Rates[quota.ID(id.String())]; used {
		return max(quota.Page, found.Average)
	}
	return AssumedCost
}

// Old reports whether nobody has confirmed the rates for [RatesHold], at now on the permit store's clock. So is what is that far in the future: the clock has
// gone back.
func (r Rates) Old(now float64) bool { return math.Abs(now-r.Time) > RatesHold.Seconds() }
