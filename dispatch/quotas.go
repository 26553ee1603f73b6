package dispatch

import (
	"context"
	"encoding/json"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// ratesEvery is how often a replica reads the rates of quotas, while quotas apply to it.
const ratesEvery = 500 * time.Millisecond

// followRates puts the rates of ratekeepers in force, while there are quotas.
func (l *Limiter) followRates(ctx context.Context) {
	ticker := time.NewTicker(ratesEvery)
	defer ticker.Stop()
	key := permits.RatesKey(l.cfg.Cluster)
	var known quota.Rates
	var readAt float64 // the permit store's clock when known was read
	for invalid := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !l.engine.HasQuotas() {
			continue
		}
		text, now, err := l.cfg.Permits.Value(ctx, key)
		if err != nil {
			continue // its limits have logged an outage of the same permit store
		}
		var found quota.Rates
		if err := json.Unmarshal(text, &found); len(text) > 0 && err != nil {
			if found = (quota.Rates{}); invalid != err.Error() {
				invalid = err.Error()
				l.log.Warn("the stored rates of quotas are invalid", "key", key, "error", err)
			}
		}
		old := known.Old(readAt)
		stale := found.Identity == known.Identity && found.Term < known.Term && !known.Old(now)
		if found.Time > 0 && !stale {
			known = found
		}
		if !old && known.Old(now) && known.Time > 0 {
			l.log.Warn("no ratekeeper has published rates lately: "+
				"each quota continues at its reserved rate or, without one, at its total",
				"for", quota.RatesHold)
		}
		readAt = now
		l.engine.ApplyRates(known, now)
	}
}

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
	text, err := json.Marshal(u)
	if err == nil {
		of := permits.UsageOf(l.cfg.Cluster)
		err = l.cfg.Permits.Publish(ctx, of, l.cfg.Replica, text, publishedFor)
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
