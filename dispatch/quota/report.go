package quota

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A Report is a backend's report of its load and of the costs that it bears.
type Report struct {
	Backend string         `json:"backend"`
	Zone    string         `json:"zone"` // backends of one zone may fail together
	Load    Load           `json:"load"`
	Costs   map[ID]float64 `json:"costs"` // per second; a missing id has none
	Time    float64        `json:"time"`  // when the report was made, seconds
}

// MaxName is the longest name of a backend or a zone, in bytes.
const MaxName = 255

// Validate returns every fault of a report that arrives at now, in a cluster that declares these
// zones. Without zones, any zone is valid.
func (r Report) Validate(zones []string, now float64) error {
	errs := []error{r.Load.Validate()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.Backend == "" || r.Zone == "" || len(r.Backend) > MaxName || len(r.Zone) > MaxName {
		bad("backend, zone: both need a name of 1 to %d bytes", MaxName)
	} else if len(zones) > 0 && !slices.Contains(zones, r.Zone) {
		bad("zone %q: is not declared by the cluster: use one of %q", r.Zone, zones)
	}
	switch {
	case r.Time <= now+maxAhead && r.Time >= now-stale:
	case r.Time == 0:
		bad("time 0: is missing: send when the report was made, as Unix time such as %.0f", now)
	default:
		bad("time %v: is %.3g s from now: check the backend's clock", r.Time, r.Time-now)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Costs)) {
		if c := r.Costs[name]; !(c >= 0 && c <= maxCost) {
			bad("cost of %.300s, %v: is invalid: want 0 to %d", name, c, int64(maxCost))
		}
	}
	return errors.Join(errs...)
}
