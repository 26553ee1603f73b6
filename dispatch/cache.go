package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/google/renameio/v2/maybe"

	"github.com/dispatchthrottle/throttle/policy"
)

// readCache returns the policies of the cache file, and records the number of replicas in it.
func (l *Limiter) readCache() (s policy.Snapshot, err error) {
	text, err := os.ReadFile(l.cfg.CacheFile)
	if err != nil {
		return s, err
	}
	l.setReplicas(replicasIn(text))
	return policy.UnmarshalSnapshot(text)
}

// useCache puts the policies of the cache file in force. Until ctx ends or the policy store
// answers, temporary policies end at their time.
func (l *Limiter) useCache(ctx context.Context, s policy.Snapshot, reason error) {
	l.log.Warn("the policies of the cache file apply until the policy store answers",
		"file", l.cfg.CacheFile, "revision", s.Revision, "error", reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	if s = s.At(time.Now()); l.snapshot.Identity == "" { // else the store has answered by now
		if l.source == nil {
			l.source = reason
		}
		l.putInForce(s)
		l.done.Go(func() { l.expire(ctx, s) })
	}
}

// writeCache writes the cache file. A failure is logged and has no other effect.
func (l *Limiter) writeCache() {
	if l.cfg.CacheFile == "" {
		return
	}
	l.cacheMu.Lock() // an older snapshot must not replace a newer one
	defer l.cacheMu.Unlock()
	l.mu.Lock()
	s := l.snapshot
	l.mu.Unlock()
	text, err := policy.MarshalSnapshot(s)
	if err == nil {
		err = maybe.WriteFile(l.cfg.CacheFile, withReplicas(text, l.replicas.Load()), 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrClosed) {
		l.log.Warn("the cache file could not be written",
			"file", l.cfg.CacheFile, "error", err)
	}
}

// withReplicas adds the number of replicas to a cached snapshot, a JSON object.
func withReplicas(snapshot []byte, n int64) []byte {
	return fmt.Appendf(snapshot[:len(snapshot)-1], `,"replicas":%d}`, n)
}

// replicasIn returns the number of replicas in a cached snapshot; 0 = unknown.
func replicasIn(snapshot []byte) int64 {
	var cached struct{ Replicas int64 }
	_ = json.Unmarshal(snapshot, &cached) // without one, it stays 0
	return max(0, cached.Replicas)
}
