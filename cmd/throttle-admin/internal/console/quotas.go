package console

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
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
	inForce  lines
	costs    lines
	backends lines
}

// lines are values at the same times, by name.
type lines map[string]cluster.Numbers

const (
	quotasEvery = 10 * time.Second
	quotaHour   = int(time.Hour / quotasEvery)
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
	inForce, costs, backends := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, d := range s.Decisions {
		inForce[string(d.ID)], costs[string(d.ID)] = d.Smoothed, d.Cost
	}
	for _, r := range s.Readers {
		if r.Ratio > 0 {
			backends[r.Backend] = 1 / r.Ratio
		}
	}
	if n := len(p.times); n > 0 && now.Unix()-p.times[n-1] > 2*int64(quotasEvery/time.Second) {
		p.point(p.times[n-1]+1, nil, nil, nil) // nobody has decided, or it could not be read
	}
	p.point(now.Unix(), inForce, costs, backends)
	if old := len(p.times) - quotaHour; old > 0 {
		p.times = slices.Delete(p.times, 0, old)
		for _, l := range []lines{p.inForce, p.costs, p.backends} {
			l.drop(old)
		}
	}
}

func (p *quotaPoints) point(at int64, inForce, costs, backends map[string]float64) {
	p.times = append(p.times, at)
	n := len(p.times)
	p.inForce, p.costs, p.backends = p.inForce.add(inForce, n), p.costs.add(costs, n), p.backends.add(backends, n)
}

// add adds a value to each line, which has n of them then.
func (l lines) add(values map[string]float64, n int) lines {
	if l == nil {
		l = lines{}
	}
	for name := range values {
		if l[name] == nil && len(l) < maxLines {
			l[name] = slices.Repeat(cluster.Numbers{float32(math.NaN())}, n-1)
		}
	}
	for name := range l {
		x, ok := values[name]
		if !ok {
			x = math.NaN()
		}
		l[name] = append(l[name], float32(x))
	}
	return l
}

// drop forgets the first values, and lines without any others.
func (l lines) drop(n int) {
	for name, values := range l {
		l[name] = slices.Delete(values, 0, n)
		if !slices.ContainsFunc(l[name], func(x float32) bool { return x == x }) {
			delete(l, name)
		}
	}
}

// A decisionsAnswer is the panel with the plots of quotas.
type decisionsAnswer struct {
	Times    []int64         `json:"times"`    // Unix seconds
	InForce  []cluster.Rates `json:"inForce"`  // messages a second, by id
	Costs    []cluster.Rates `json:"costs"`    // bytes a second, by id
	Backends []cluster.Rates `json:"backends"` // load / what it bears
}

// since returns the points after a time, in Unix seconds.
func (p *quotaPoints) since(after int64) decisionsAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, found := slices.BinarySearch(p.times, after)
	if found {
		i++
	}
	return decisionsAnswer{slices.Clone(p.times[i:]), p.inForce.from(i), p.costs.from(i), p.backends.from(i)}
}

func (l lines) from(i int) []cluster.Rates {
	all := []cluster.Rates{}
	for name, values := range maps.All(l) {
		all = append(all, cluster.Rates{Name: name, Values: slices.Clone(values[i:])})
	}
	slices.SortFunc(all, func(a, b cluster.Rates) int { return strings.Compare(a.Name, b.Name) })
	return all
}
