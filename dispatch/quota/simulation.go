package quota

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// A Simulation is clients, held to their quotas, on backends that are simulated, second by second.
type Simulation struct {
	Quotas   map[ID]Quota       `json:"quotas"`
	Backends []SimulatedBackend `json:"backends"`
	Clients  []Client           `json:"clients"`

	now   float64
	rates map[ID]float64
}

// A SimulatedBackend has a queue that is its load over its capacity, of the queue it should have at most.
type SimulatedBackend struct {
	Name     string  `json:"name"`
	Zone     string  `json:"zone,omitempty"` // default: its name
	Capacity float64 `json:"capacity"`       // cost a second
}

// A Client sends requests, whose cost is spread evenly over backends.
type Client struct {
	ID       ID       `json:"id"`
	Rate     float64  `json:"rate"`               // requests a second that it would send
	Read     int64    `json:"read,omitempty"`     // bytes of a request
	Write    int64    `json:"write,omitempty"`    // bytes of a request
	Backends []string `json:"backends,omitempty"` // default: all
}

// cost is that of a request.
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

// mostBytes bounds a simulated request.
const mostBytes = 1 << 40

// Validate returns all that is wrong with a simulation.
func (s *Simulation) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	positive := func(v float64) bool { return v > 0 && !math.IsInf(v, 1) }
	names := map[string]bool{}
	for i, b := range s.Backends {
		if b.Name == "" || names[b.Name] {
			bad("backends[%d].name %q: is empty, or not the only one", i, b.Name)
		}
		names[b.Name] = true
		if !positive(b.Capacity) {
			bad("backends[%d].capacity %v: is no cost a second above 0", i, b.Capacity)
		}
	}
	if len(s.Backends) == 0 {
		bad("backends: there are none")
	}
	if len(s.Clients) == 0 {
		bad("clients: there are none")
	}
	for i, c := range s.Clients {
		if c.ID == "" {
			bad("clients[%d].id: is empty", i)
		}
		if c.Rate < 0 || !positive(c.Rate+1) {
			bad("clients[%d].rate %v: is no number from 0 on", i, c.Rate)
		}
		if c.Read < 0 || c.Write < 0 || c.Read > mostBytes || c.Write > mostBytes {
			bad("clients[%d]: read %d and write %d: are no numbers of bytes from 0 to %d", i, c.Read, c.Write, int64(mostBytes))
		}
		if cost := c.Rate * c.cost(); cost > mostCost {
			bad("clients[%d]: %v requests a second of these bytes cost %.3g: at most %d can be simulated", i, c.Rate, cost, int64(mostCost))
		}
		for _, name := range c.Backends {
			if !names[name] {
				bad("clients[%d].backends: %q is none of them", i, name)
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

// The queue of a simulated backend at its capacity, and the spring before it, in bytes: the defaults of FoundationDB's storage servers.
const (
	simulatedTarget = 800e6
	simulatedSpring = 200e6
)

// A Step is one second of a simulation.
type Step struct {
	Sent      map[ID]float64 // requests in it
	Load      []float64      // of each backend, its capacity being 1
	Decisions []Decision     // for the next
}

// Step lets a second go by. The simulation must be valid.
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
		if limit, ok := s.rates[c.ID]; ok && wanted[c.ID] > limit { // an id's clients have it together
			rate *= limit / wanted[c.ID]
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
		load := step.Load[i]
		r := Report{Backend: b.Name, Zone: b.Zone, Time: s.now, Costs: costs[i], Load: Load{load * simulatedTarget, simulatedTarget, simulatedSpring}}
		if r.Zone == "" {
			r.Zone = b.Name
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

// on are the indexes of the client's backends.
func (c Client) on(all []SimulatedBackend) (on []int) {
	for i, b := range all {
		if len(c.Backends) == 0 || slices.Contains(c.Backends, b.Name) {
			on = append(on, i)
		}
	}
	return on
}
