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

// readCache returns the policies last seen, or an error if there are none, and notes how many
// replicas there were.
func (l *Limiter) readCache() (s policy.Snapshot, err error) {
	text, err := os.ReadFile(l.cfg.CacheFile)
	if err != nil {
		return s, err
	}
	l.setReplicas(replicasIn(text))
	return policy.UnmarshalSnapshot(text)
}

// useCache starts from the policies last seen. Until ctx ends or the policy store answers,
// temporary ones end at their time.
func (l *Limiter) useCache(ctx context.Context, s policy.Snapshot, reason error) {
	l.log.Warn("the policies are those of the cache file until the policy store answers",
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

// writeCache writes the cache file; a failure is logged and harmless.
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
		l.log.Warn("the cache file of policies could not be written",
			"file", l.cfg.CacheFile, "error", err)
	}
}

// withReplicas adds the number of replicas to a cached snapshot, a JSON object.
func withReplicas(snapshot []byte, n int64) []byte {
	return fmt.Appendf(snapshot[:len(snapshot)-1], `,"replicas":%d}`, n)
}

// replicasIn is the number of replicas in a cached snapshot; 0 = unknown.
func replicasIn(snapshot []byte) int64 {
	var cached struct{ Replicas int64 }
	_ = json.Unmarshal(snapshot, &cached) // else there is none
	return max(0, cached.Replicas)
}
