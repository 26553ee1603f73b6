package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// A Usage is what the throttling ids of one replica have lately started, and what they have cost.
// Replicas publish it under [permits.UsageOf].
type Usage struct {
	Replica  string               `json:"replica"`
	Started  map[quota.ID]float64 `json:"started,omitempty"` // messages a second
	Backends []quota.Report       `json:"backends,omitempty"`
}

// A usage is the time since which usage has not been published.
type usage struct{ at time.Time }

// publishUsage publishes, for the ratekeeper, what throttling ids have used since the last time
// that succeeded.
func (l *Limiter) publishUsage(ctx context.Context, since *usage) {
	now := time.Now()
	secs := max(now.Sub(since.at).Seconds(), 0.1)
	u := Usage{Replica: l.cfg.Replica, Started: map[quota.ID]float64{}}
	started := l.engine.Started()
	for id, n := range started {
		u.Started[id] = max(0, float64(n)) / secs
	}
	var published []func()
	l.mu.Lock()
	for _, b := range l.backends {
		if r, done := b.report(secs); done != nil {
			u.Backends = append(u.Backends, r)
			published = append(published, done)
		}
	}
	l.mu.Unlock()
	if len(u.Started)+len(u.Backends) == 0 {
		since.at = now
		return
	}
	texts, err := u.records()
	for i := 0; i < len(texts) && err == nil; i++ {
		cluster, name := permits.UsageOf(l.cfg.Cluster), l.cfg.Replica
		if i > 0 {
			name = fmt.Sprintf("%s|%d", name, i+1)
		}
		err = l.cfg.Permits.Publish(ctx, cluster, name, texts[i], publishedFor)
	}
	if err != nil {
		if ctx.Err() == nil {
			l.log.Debug("the usage of quotas could not be published", "error", err)
		}
		return
	}
	since.at = now
	l.engine.TakeStarted(started)
	for _, done := range published {
		done()
	}
}

// records returns the usage as JSON, in as many records as its size needs. The sums over them are
// those of the usage.
func (u Usage) records() ([][]byte, error) {
	text, err := json.Marshal(u)
	if err != nil || permits.CheckRecord(text) == nil {
		return [][]byte{text}, err
	}
	ids := map[quota.ID]bool{}
	for id := range u.Started {
		ids[id] = true
	}
	for _, b := range u.Backends {
		for id := range b.Costs {
			ids[id] = true
		}
	}
	var parts []Usage
	sorted := slices.Sorted(maps.Keys(ids))
	switch middle := len(sorted) / 2; {
	case middle > 0:
		parts = []Usage{u.only(sorted[:middle]), u.only(sorted[middle:])}
	case len(u.Backends) > 1:
		half := len(u.Backends) / 2
		parts = []Usage{
			{u.Replica, u.Started, u.Backends[:half]}, {u.Replica, nil, u.Backends[half:]},
		}
	default:
		return [][]byte{text}, nil // a long name; the permit store refuses it
	}
	var all [][]byte
	for _, part := range parts {
		texts, err := part.records()
		if err != nil {
			return nil, err
		}
		all = append(all, texts...)
	}
	return all, nil
}

// only returns the part of the usage that these ids have.
func (u Usage) only(ids []quota.ID) Usage {
	part := Usage{Replica: u.Replica, Started: pick(u.Started, ids)}
	for _, b := range u.Backends {
		b.Costs = pick(b.Costs, ids)
		part.Backends = append(part.Backends, b)
	}
	return part
}

// pick returns the entries of m that these ids have.
func pick(m map[quota.ID]float64, ids []quota.ID) map[quota.ID]float64 {
	some := map[quota.ID]float64{}
	for _, id := range ids {
		if v, ok := m[id]; ok {
			some[id] = v
		}
	}
	return some
}
