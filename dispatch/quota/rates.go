package quota

import (
	"math"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/policy"
)

// Rates is the record in which a ratekeeper puts rates in force. Unless its last record is
// [Rates.Old], a replica ignores a record of an earlier term.
type Rates struct {
	Identity string      `json:"identity"` // of the policy store; terms compare only within one
	Term     int64       `json:"term"`     // of the ratekeeper's election
	Keeper   string      `json:"keeper"`   // name of the ratekeeper
	Time     float64     `json:"time"`     // on the permit store's clock, seconds
	Rates    map[ID]Rate `json:"rates"`    // of ids with known costs; the others have their totals
}

// A Rate is the rate of one throttling id.
type Rate struct {
	Rate    float64 `json:"rate"`    // messages a second
	Average float64 `json:"average"` // cost of a message, bytes
}

// RatesHold is how long rates stay in force that no ratekeeper renews. After that, an id has its
// reserved rate or, if it has none, its total.
const RatesHold = time.Minute

// AssumedCost is the cost of a message while the average is unknown, in bytes: one written page.
const AssumedCost = WriteFactor * Page

// Of returns the rate of an id with this quota, in messages a second, at now on the permit store's
// clock. An id of unknown cost has its total, at [AssumedCost]. If the record is [Rates.Old], the
// rate is the reserved one or, if there is none, the total. In shadow mode it is [busy.Max].
func (r Rates) Of(id policy.Scope, q policy.EffectiveQuota, now float64) float64 {
	found, known := r.Rates[ID(id.String())]
	switch old := r.Old(now); {
	case q.Shadow:
		return busy.Max
	case known && !old:
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
	if found, known := r.Rates[ID(id.String())]; known {
		return max(Page, found.Average)
	}
	return AssumedCost
}

// Old reports whether the record is older than [RatesHold] at now on the permit store's clock. A
// record that far in the future is old, too: the clock was stepped back.
func (r Rates) Old(now float64) bool { return math.Abs(now-r.Time) > RatesHold.Seconds() }
