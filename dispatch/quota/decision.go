package quota

import (
	"encoding/json"
	"math"
)

// A Decision is the rate found for an id, with all its inputs. Rates are requests a second, costs
// bytes a second.
type Decision struct {
	ID          ID      `json:"id"`
	Rate        float64 `json:"rate"`        // of requests, lately
	Cost        float64 `json:"cost"`        // of all requests
	AverageCost float64 `json:"averageCost"` // of one request, bytes
	Quota       Quota   `json:"quota"`
	Reserved    float64 `json:"reserved"` // the reserved quota as a rate
	Desired     float64 `json:"desired"`  // the total quota as a rate
	Limiting    float64 `json:"-"`        // what the backends can bear; NaN, in JSON null: no limit
	Target      float64 `json:"target"`   // found by this pass
	Smoothed    float64 `json:"smoothed"` // in force
	Busy        bool    `json:"busy"`     // a backend limits it
	Backends    int     `json:"backends"` // number of backends that it loads
	Assumed     bool    `json:"assumed"`  // AverageCost is not yet known
	Shadow      bool    `json:"shadow"`   // the rate limits nothing; set by the ratekeeper

	// Zones has the lowest limiting rate of each zone with backends near their targets, by name.
	Zones []ZoneLimit `json:"zones,omitempty"`
}

// A ZoneLimit is the rate of an id that the backends of a zone can bear, in requests a second.
type ZoneLimit struct {
	Zone string  `json:"zone"`
	Rate float64 `json:"rate"`
}

// plainDecision is a Decision without methods, so that encoding it does not recurse.
type plainDecision Decision

type decisionJSON struct {
	plainDecision
	Limiting *float64 `json:"limiting"`
}

// MarshalJSON writes a Limiting of NaN as null.
func (d Decision) MarshalJSON() ([]byte, error) {
	j := decisionJSON{plainDecision: plainDecision(d)}
	if !math.IsNaN(d.Limiting) {
		j.Limiting = &d.Limiting
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the form that MarshalJSON writes.
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
