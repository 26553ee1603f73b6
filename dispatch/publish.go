package dispatch

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

const (
	publishEvery = time.Second
	publishedFor = 3 * time.Second
	idleEvery    = 10 * time.Second // while a replica has limits and no use for permits
	idleFor      = 30 * time.Second

	// maxPublished bounds the subscriptions of a status record, as permits.MaxRecord does its bytes.
	maxPublished = 1000
)

// A ReplicaCounter is a PermitStore that knows how many replicas of a cluster have published
// lately. If the permit store becomes unavailable, a replica without a share of its own continues
// at the limit divided by the last count.
type ReplicaCounter interface {
	Replicas(ctx context.Context, cluster string) (int, error)
}

// Counting reads one key per replica, and is therefore rare. The first count waits until replicas
// that started at the same time have published.
const (
	firstCount = 10 * time.Second
	countEvery = 30 * time.Second
)

// publish publishes usage and status of this replica once a second.
func (l *Limiter) publish(ctx context.Context) {
	ticker := time.NewTicker(publishEvery)
	defer ticker.Stop()
	usage := usage{at: time.Now()}
	var idleAt time.Time
	for countAt := time.Now().Add(firstCount); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		l.publishUsage(ctx, &usage)
		l.followRivals(ctx)
		l.engine.ForgetEnded()
		if now := time.Now(); l.publishStatus(ctx, &idleAt) && now.After(countAt) {
			countAt = now.Add(countEvery)
			l.countReplicas(ctx)
		}
	}
}

// followRivals keeps l.rivals up to date, and logs which policy stores have become rivals of this
// process's, and which are none any more.
func (l *Limiter) followRivals(ctx context.Context) {
	rivals := l.engine.Rivals()
	if ctx.Err() != nil || l.engine.Availability().Unavailable { // nobody knows now
		return
	}
	l.mu.Lock()
	own, logged := l.snapshot.Identity, l.rivals
	l.rivals = rivals
	l.mu.Unlock()
	for _, id := range rivals {
		if !slices.Contains(logged, id) {
			l.log.Warn("replicas that follow another policy store use the same limits: the lower rates are "+
				"in force; give each policy store a cluster name of its own, or all replicas one store",
				"policies", own, "others", id)
		}
	}
	for _, id := range logged {
		if !slices.Contains(rivals, id) {
			l.log.Warn("replicas that follow another policy store use the same limits no more",
				"policies", own, "others", id)
		}
	}
}

// publishStatus publishes the subscriptions that are not idle, and reports whether it did. A
// replica whose subscriptions all are idle is counted too, if they have limits: it publishes none
// of them, and does so rarely. idleAt is when it did; zero = it is not idle.
func (l *Limiter) publishStatus(ctx context.Context, idleAt *time.Time) bool {
	s, ttl := l.stats(true, maxPublished), publishedFor
	if len(s.Subscriptions) > 0 {
		*idleAt = time.Time{}
	} else {
		if !l.engine.Limited() || time.Since(*idleAt) < idleEvery {
			return false
		}
		*idleAt, ttl = time.Now(), idleFor
	}
	if s.Permits.Unavailable {
		return false
	}
	text, err := json.Marshal(s)
	for err == nil && permits.CheckRecord(text) != nil && len(s.Subscriptions) > 0 {
		s = l.stats(true, len(s.Subscriptions)/2)
		text, err = json.Marshal(s)
	}
	if err == nil {
		err = l.cfg.Permits.Publish(ctx, l.cfg.Cluster, l.cfg.Replica, text, ttl)
	}
	if err != nil && ctx.Err() == nil {
		l.log.Debug("the status record could not be published", "error", err)
	}
	return err == nil
}

// countReplicas counts the replicas, if the permit store can, and keeps the count for the next
// start.
func (l *Limiter) countReplicas(ctx context.Context) {
	counter, ok := l.cfg.Permits.(ReplicaCounter)
	if !ok {
		return
	}
	n, err := counter.Replicas(ctx, l.cfg.Cluster)
	if err != nil || n == 0 || !l.setReplicas(int64(n)) {
		return
	}
	l.writeCache()
}

// setReplicas records the number of replicas, and reports whether it has changed.
func (l *Limiter) setReplicas(n int64) bool {
	l.engine.SetReplicas(n)
	return l.replicas.Swap(n) != n
}
