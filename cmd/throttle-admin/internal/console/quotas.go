package console

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
)

// quotaPoints are what the ratekeeper has decided in the last hour.
type quotaPoints struct {
	mu       sync.Mutex
	times    []int64 // Unix seconds
	more     int     // ids and backends last, beyond maxLines
	inForce  cluster.Lines
	costs    cluster.Lines
	backends cluster.Lines
}

func newQuotaPoints() *quotaPoints {
	return &quotaPoints{inForce: cluster.Lines{}, costs: cluster.Lines{}, backends: cluster.Lines{}}
}

const (
	quotasEvery = 10 * time.Second
	maxLines    = 100 // of one plot
)

// run reads the decisions until ctx ends.
func (p *quotaPoints) run(ctx context.Context, store dispatch.PermitStore, name string) {
	ticker := time.NewTicker(quotasEvery)
	defer ticker.Stop()
	for {
		if s, leads, err := ratekeeper.Decided(ctx, store, name); err == nil && leads {
			p.add(s, time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// add adds a point.
func (p *quotaPoints) add(s ratekeeper.Status, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(now)
	inForce, costs, backends := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, d := range s.Decisions {
		inForce[string(d.ID)], costs[string(d.ID)] = d.Smoothed, d.Cost
	}
	for _, b := range s.Backends {
		if b.Load.Target > 0 { // else it says nothing of its load
			backends[b.Backend] = b.Load.Queue / b.Load.Target
		}
	}
	if n := len(p.times); n > 0 && now.Unix()-p.times[n-1] > 2*int64(quotasEvery/time.Second) {
		p.point(p.times[n-1]+1, nil, nil, nil) // nobody has decided, or it could not be read
	}
	p.point(now.Unix(), inForce, costs, backends)
}

// bytes is about how much memory the points take: less than 1 MiB, since there are at most maxLines
// in each of the plots, whose points are forgotten after an hour.
func (p *quotaPoints) bytes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return 8*cap(p.times) + p.inForce.Bytes() + p.costs.Bytes() + p.backends.Bytes()
}

// forget drops the points that are older than an hour, and all if the clock was set back.
func (p *quotaPoints) forget(now time.Time) {
	old, _ := slices.BinarySearch(p.times, now.Add(-time.Hour).Unix()+1)
	if n := len(p.times); n > 0 && p.times[n-1] > now.Unix() {
		old = n
	}
	if old == 0 {
		return
	}
	p.times = slices.Delete(p.times, 0, old)
	for _, l := range []cluster.Lines{p.inForce, p.costs, p.backends} {
		l.Drop(old)
	}
}

func (p *quotaPoints) point(at int64, inForce, costs, backends map[string]float64) {
	p.more = put(p.inForce, inForce, len(p.times)) + put(p.backends, backends, len(p.times))
	put(p.costs, costs, len(p.times))
	p.times = append(p.times, at)
}

// put appends a value to each line, of which each has n, and begins lines for the largest of the
// others while there is room. It returns how many values have no line.
func put(lines cluster.Lines, values map[string]float64, n int) (more int) {
	for name := range lines {
		if x, ok := values[name]; ok {
			lines.Put(name, float32(x), n)
		} else {
			lines.Put(name, float32(math.NaN()), n)
		}
	}
	names := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	for _, name := range names {
		switch {
		case lines[name] != nil:
		case len(lines) < maxLines:
			lines.Put(name, float32(values[name]), n)
		default:
			more++
		}
	}
	return more
}

// A decisionsAnswer is the panel with the plots of quotas.
type decisionsAnswer struct {
	Times    []int64         `json:"times"`    // Unix seconds
	InForce  []cluster.Rates `json:"inForce"`  // messages a second, by id
	Costs    []cluster.Rates `json:"costs"`    // bytes a second, by id
	Backends []cluster.Rates `json:"backends"` // load, as a part of the target
	More     int             `json:"more"`     // ids and backends without a line
}

// since returns the points of the hour before now that are after a time, in Unix seconds.
func (p *quotaPoints) since(after int64, now time.Time) decisionsAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(now)
	i, found := slices.BinarySearch(p.times, after)
	if found {
		i++
	}
	return decisionsAnswer{slices.Clone(p.times[i:]), p.inForce.From(i), p.costs.From(i), p.backends.From(i), p.more}
}
