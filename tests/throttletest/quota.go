package throttletest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// Quota returns a quota of n messages a second: without a ratekeeper, a message costs what replicas
// assume.
func Quota(n int64) policy.Quota { return policy.Quota{Total: new(n * quota.AssumedCost)} }

// Granted returns the number of permits that the quota of a throttling id has granted.
func (l *Limiter) Granted(id string) (n int64) {
	scope, err := policy.ParseScope(id)
	if err != nil {
		l.t.Error(err)
	}
	for _, s := range l.Stats().Subscriptions {
		for _, a := range s.Limits {
			if a.Key == permits.QuotaKey(l.Stats().Cluster, scope) {
				n += a.Granted - a.Returned
			}
		}
	}
	return n
}

// Costs returns the total cost of each throttling id at a backend, in bytes, as far as the Limiter
// has published it, once a second.
func (l *Limiter) Costs(backend string) map[quota.ID]float64 {
	l.used.mu.Lock()
	defer l.used.mu.Unlock()
	return maps.Clone(l.used.costs[backend])
}

// used is a permit store that adds up the published usage, and fails at times.
type used struct {
	*memory.Store
	lost  atomic.Bool
	mu    sync.Mutex
	last  time.Time // of publishing usage
	costs map[string]map[quota.ID]float64
}

func newUsed() *used {
	return &used{Store: memory.New(), last: time.Now(), costs: map[string]map[quota.ID]float64{}}
}

// Do fails while the store is lost.
func (u *used) Do(ctx context.Context, requests []*permits.Request) {
	if !u.lost.Load() {
		u.Store.Do(ctx, requests)
		return
	}
	for _, r := range requests {
		r.Err = errLost
	}
}

var errLost = errors.New("the permit store is lost")

// Publish adds up usage, whose rates are those since the last one.
func (u *used) Publish(
	ctx context.Context, cluster, replica string, text []byte, ttl time.Duration,
) error {
	var usage dispatch.Usage
	if cluster == permits.UsageOf("standalone") && json.Unmarshal(text, &usage) == nil {
		u.mu.Lock()
		secs := time.Since(u.last).Seconds()
		u.last = time.Now()
		for _, b := range usage.Backends {
			if u.costs[b.Backend] == nil {
				u.costs[b.Backend] = map[quota.ID]float64{}
			}
			for id, rate := range b.Costs {
				u.costs[b.Backend][id] += rate * secs
			}
		}
		u.mu.Unlock()
	}
	return u.Store.Publish(ctx, cluster, replica, text, ttl)
}
