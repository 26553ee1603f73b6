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

// A Backend is a system that consumers load: a broker, or what handlers write to. It counts what
// throttling ids with a quota cost it, and knows how near it is to what it can bear; once a second
// that is published for the ratekeeper. Any number of goroutines may use it at once. A nil Backend
// counts nothing.
type Backend struct {
	name, zone string
	sample     float64

	costs sync.Map // of *meter, by quota.ID
	load  atomic.Pointer[reported]
}

// A meter counts an id's cost.
type meter struct {
	cost atomic.Int64
	told int64     // at the last report
	at   time.Time // of the last one that had some
}

type reported struct {
	load quota.Load
	at   time.Time
}

const (
	minSample = 1e-6    // so that what is scaled back stays a number
	maxCost   = 1 << 50 // that one message is counted with, bytes
)

// forgetCosts is after how long an id that costs a backend nothing, or a backend that nothing
// costs, is not reported any more.
const forgetCosts = time.Minute

// loadValid is how long a reported load counts.
const loadValid = 5 * time.Second

// Backend returns the one of that name; zone is what it may fail with, its own name if there is no
// other. The zone is that of the first call.
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
	if b == nil {
		b = &Backend{name: name, zone: zone, sample: l.cfg.CostSample}
		l.backends[name] = b
	}
	return b, nil
}

// Read counts a message of a subscription of which so many bytes were read from the backend.
func (b *Backend) Read(s *Subscription, bytes int64) {
	if id := b.meters(s); id != nil {
		b.add(*id, quota.ReadCost(bytes))
	}
}

// Wrote counts a message of a subscription of which so many bytes were written to the backend, or
// deleted there.
func (b *Backend) Wrote(s *Subscription, bytes int64) {
	if id := b.meters(s); id != nil {
		b.add(*id, quota.WriteCost(bytes))
	}
}

// Metered reports whether a throughput quota applies, so that Backends count what messages cost.
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

// ReportLoad says how near the backend is to its target. It counts for five seconds; of several
// processes' reports the worst does. The error names what is no number of its kind.
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

// report returns the costs of the time since the last report that was published, secs ago. done
// notes that this one is; it is nil if there has been nothing to report for long. Limiter.mu is
// held.
func (b *Backend) report(secs float64) (r quota.Report, done func()) {
	now := time.Now()
	r = quota.Report{Backend: b.name, Zone: b.zone, Costs: map[quota.ID]float64{}}
	counted := map[*meter]int64{}
	some := false
	b.costs.Range(func(id, m any) bool {
		of := m.(*meter)
		if cost := of.cost.Load(); cost > of.told {
			r.Costs[id.(quota.ID)] = float64(cost-of.told) / secs
			counted[of], of.at = cost, now
		}
		if now.Sub(of.at) > forgetCosts {
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
		for of, cost := range counted {
			of.told = cost
		}
	}
}
