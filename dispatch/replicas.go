package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// A ReplicaCounter is a PermitStore that knows how many replicas of a cluster have published lately. A replica that has no
// share of its own when the permit store is unavailable goes on at the limit divided by the last count.
type ReplicaCounter interface {
	Replicas(ctx context.Context, cluster string) (int, error)
}

// Counting reads one key per replica, so that it is done rarely; first when others that have started at the same time
// have published.
const (
	firstCount = 10 * time.Second
	countEvery = 30 * time.Second
)

// countReplicas counts them, if the permit store can, and keeps the count for the next start.
func (l *Limiter) countReplicas(ctx context.Context) {
	counter, ok := l.cfg.Permits.(ReplicaCounter)
	if !ok {
		return
	}
	n, err := counter.Replicas(ctx, l.cfg.Cluster)
	if err != nil || n == 0 || l.replicas.Swap(int64(n)) == int64(n) {
		return
	}
	l.keepCache()
}

// withReplicas adds the count to a cached snapshot, a JSON object.
func withReplicas(snapshot []byte, n int64) []byte {
	return fmt.Appendf(snapshot[:len(snapshot)-1], `,"replicas":%d}`, n)
}

// replicasIn is the count in a cached snapshot; 0 = not known.
func replicasIn(snapshot []byte) int64 {
	var cached struct{ Replicas int64 }
	_ = json.Unmarshal(snapshot, &cached) // else there is none
	return max(0, cached.Replicas)
}
