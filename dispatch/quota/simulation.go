package quota

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// A Simulation runs clients with quotas on simulated backends, in steps of one second.
type Simulation struct {
	Quotas   map[ID]Quota       `json:"quotas"`
	Backends []SimulatedBackend `json:"backends"`
	Clients  []Client           `json:"clients"`

	now   float64
	rates map[ID]float64 // in force
}

// A SimulatedBackend has a queue in proportion to its load; at its capacity, the queue is at its
// target.
type SimulatedBackend struct {
	Name     string  `json:"name"`
	Zone     string  `json:"zone,omitempty"` // default: its name
	Capacity float64 `json:"capacity"`       // cost a second
}

// A Client sends requests. Their cost is spread evenly over its backends.
type Client struct {
	ID       ID       `json:"id"`
	Rate     float64  `json:"rate"`               // requests a second without a limit
	Read     int64    `json:"read,omitempty"`     // bytes of a request
	Write    int64    `json:"write,omitempty"`    // bytes of a request
	Backends []string `json:"backends,omitempty"` // default: all
}

// cost returns the cost of a request.
func (c Client) cost() float64 {
	cost := 0.0
	if c.Read > 0 || c.Write == 0 {
		cost += float64(ReadCost(c.Read))
	}
	if c.Write > 0 {
		cost += float64(WriteCost(c.Write))
	}
	return cost
}

// maxBytes is the largest simulated read or write.
const maxBytes = 1 << 40

// Validate returns every fault of a simulation.
func (s *Simulation) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	positive := func(v float64) bool { return v > 0 && !math.IsInf(v, 1) }
	names := map[string]bool{}
	for i, b := range s.Backends {
		if b.Name == "" || names[b.Name] {
			bad("backends[%d].name %q: is empty or not unique", i, b.Name)
		}
		names[b.Name] = true
		if !positive(b.Capacity) {
			bad("backends[%d].capacity %v: is invalid: want more than 0", i, b.Capacity)
		}
	}
	if len(s.Backends) == 0 {
		bad("backends: want at least one")
	}
	if len(s.Clients) == 0 {
		bad("clients: want at least one")
	}
	for i, c := range s.Clients {
		if c.ID == "" {
			bad("clients[%d].id: is empty", i)
		}
		if c.Rate < 0 || !positive(c.Rate+1) {
			bad("clients[%d].rate %v: is invalid: want 0 or more", i, c.Rate)
		}
		if c.Read < 0 || c.Write < 0 || c.Read > maxBytes || c.Write > maxBytes {
			bad("clients[%d]: read %d, write %d: want 0 to %d bytes each",
				i, c.Read, c.Write, int64(maxBytes))
		}
		if cost := c.Rate * c.cost(); cost > maxCost {
			bad("clients[%d]: %v requests a second of these bytes cost %.3g: want %d or less",
				i, c.Rate, cost, int64(maxCost))
		}
		for _, name := range c.Backends {
			if !names[name] {
				bad("clients[%d].backends: %q: is unknown: use the name of a backend", i, name)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Quotas)) {
		if err := s.Quotas[id].Validate(); err != nil {
			bad("quotas: %s: %w", id, err)
		}
	}
	return errors.Join(errs...)
}

// The target and the spring of a simulated backend's queue, in bytes: the defaults of
// FoundationDB's storage servers.
const (
	simulatedTarget = 800e6
	simulatedSpring = 200e6
)

// A Step is one second of a simulation.
type Step struct {
	Sent      map[ID]float64 // requests in this second
	Load      []float64      // of each backend; 1 is its capacity
	Decisions []Decision     // for the next second
}

// Step simulates one second. The simulation must be valid.
func (s *Simulation) Step(k *Keeper) (step Step, err error) {
	s.now++
	costs := make([]map[ID]float64, len(s.Backends))
	for i := range costs {
		costs[i] = map[ID]float64{}
	}
	wanted := map[ID]float64{}
	for _, c := range s.Clients {
		wanted[c.ID] += c.Rate
	}
	step.Sent, step.Load = map[ID]float64{}, make([]float64, len(s.Backends))
	for _, c := range s.Clients {
		rate := c.Rate
		if limit, ok := s.rates[c.ID]; ok && wanted[c.ID] > limit {
			rate *= limit / wanted[c.ID] // the clients of an id share its limit
		}
		step.Sent[c.ID] += rate
		on := c.on(s.Backends)
		for _, i := range on {
			cost := rate * c.cost() / float64(len(on))
			costs[i][c.ID] += cost
			step.Load[i] += cost / s.Backends[i].Capacity
		}
	}
	for id, rate := range step.Sent {
		if err := k.Started(id, rate, s.now); err != nil {
			return step, err
		}
	}
	for i, b := range s.Backends {
		r := Report{
			Backend: b.Name, Zone: cmp.Or(b.Zone, b.Name), Time: s.now, Costs: costs[i],
			Load: Load{step.Load[i] * simulatedTarget, simulatedTarget, simulatedSpring},
		}
		if err := k.Report(r, s.now); err != nil {
			return step, err
		}
	}
	if err := k.SetQuotas(s.Quotas, s.now); err != nil {
		return step, err
	}
	step.Decisions = k.Decide(s.now)
	s.rates = map[ID]float64{}
	for _, d := range step.Decisions {
		s.rates[d.ID] = d.Smoothed
	}
	return step, nil
}

// on returns the indexes of the client's backends.
func (c Client) on(all []SimulatedBackend) (on []int) {
	for i, b := range all {
		if len(c.Backends) == 0 || slices.Contains(c.Backends, b.Name) {
			on = append(on, i)
		}
	}
	return on
}
