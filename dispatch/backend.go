package dispatch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// A Backend is a system that consumers load: a broker, or a system that handlers write to. It
// counts the costs of throttling ids with a quota, and has the load that was reported for it. Both
// are published once a second for the ratekeeper. Any number of goroutines may use it at once. A
// nil Backend counts nothing.
type Backend struct {
	name, zone string
	sample     float64

	costs sync.Map // of *meter, by quota.ID
	load  atomic.Pointer[reported]
}

// A meter counts an id's cost.
type meter struct {
	cost atomic.Int64
	told int64     // the cost at the last report
	at   time.Time // of the last report with a cost
}

type reported struct {
	load quota.Load
	at   time.Time
}

const (
	minSample = 1e-6    // so that scaled counts stay finite
	maxCost   = 1 << 50 // of one message, bytes

	maxBackends = 10_000 // of a Limiter
)

// forgetCosts is how long an id without costs on a backend, or a backend without costs, is still
// reported.
const forgetCosts = time.Minute

// loadValid is how long a reported load is valid.
const loadValid = 5 * time.Second

// Backend returns the backend of that name. Backends of one zone may fail together; use the name
// as the zone if there is no other. The zone of the first call counts. A Limiter has up to 10,000
// backends.
func (l *Limiter) Backend(name, zone string) (*Backend, error) {
	if name == "" || zone == "" || len(name) > quota.MaxName || len(zone) > quota.MaxName {
		return nil, fmt.Errorf("dispatch: backend %.50q, zone %.50q: want names of 1 to %d bytes",
			name, zone, quota.MaxName)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	b := l.backends[name]
	if b == nil && len(l.backends) >= maxBackends {
		return nil, fmt.Errorf("dispatch: backend %s: there are %d others: "+
			"count several systems as one backend", name, maxBackends)
	}
	if b == nil {
		b = &Backend{name: name, zone: zone, sample: l.cfg.CostSample}
		l.backends[name] = b
	}
	return b, nil
}

// Read counts a message of s of which this number of bytes was read from the backend.
func (b *Backend) Read(s *Subscription, bytes int64) {
	if id := b.meters(s); id != nil {
		b.add(*id, quota.ReadCost(bytes))
	}
}

// Wrote counts a message of s of which this number of bytes was written to the backend or deleted
// there.
func (b *Backend) Wrote(s *Subscription, bytes int64) {
	if id := b.meters(s); id != nil {
		b.add(*id, quota.WriteCost(bytes))
	}
}

// Metered reports whether a throughput quota applies, so that Backends count the cost of messages.
func (s *Subscription) Metered() bool { return s != nil && s.handle.Lane.Quota() != nil }

func (b *Backend) meters(s *Subscription) *quota.ID {
	if b == nil || s == nil {
		return nil
	}
	id := s.handle.Lane.Quota()
	if id == nil || b.sample < 1 && rand.Float64() >= b.sample {
		return nil
	}
	return id
}

func (b *Backend) add(id quota.ID, cost int64) {
	cost = int64(min(float64(cost)/b.sample, maxCost))
	m, ok := b.costs.Load(id)
	if !ok {
		m, _ = b.costs.LoadOrStore(id, new(meter))
	}
	m.(*meter).cost.Add(cost)
}

// ReportLoad reports how near the backend is to its target. A report is valid for five seconds; of
// the reports of several processes, the highest load counts. The error names invalid values.
func (b *Backend) ReportLoad(load quota.Load) error {
	if b == nil {
		return nil
	}
	err := load.Validate()
	if load == (quota.Load{}) {
		err = errors.New("load: is empty")
	}
	if err != nil {
		return fmt.Errorf("dispatch: backend %s: %w", b.name, err)
	}
	b.load.Store(&reported{load, time.Now()})
	return nil
}

// report returns the costs since the last report that was published, secs seconds ago. done marks
// this report as published; it is nil if there was nothing to report for long. Limiter.mu is held.
func (b *Backend) report(secs float64) (r quota.Report, done func()) {
	now := time.Now()
	r = quota.Report{Backend: b.name, Zone: b.zone, Costs: map[quota.ID]float64{}}
	counted := map[*meter]int64{}
	some := false
	b.costs.Range(func(id, m any) bool {
		count := m.(*meter)
		if cost := count.cost.Load(); cost > count.told {
			r.Costs[id.(quota.ID)] = float64(cost-count.told) / secs
			counted[count], count.at = cost, now
		}
		if now.Sub(count.at) > forgetCosts {
			b.costs.Delete(id)
		} else {
			some = true
		}
		return true
	})
	if l := b.load.Load(); l != nil && time.Since(l.at) < loadValid {
		r.Load, some = l.load, true
	}
	if !some {
		return r, nil
	}
	return r, func() {
		for count, cost := range counted {
			count.told = cost
		}
	}
}
