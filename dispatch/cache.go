package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/google/renameio/v2/maybe"

	"github.com/dispatchthrottle/throttle/policy"
)

// readCache reads the cache file: the policies with what was refused after them, and the number of
// replicas.
func (l *Limiter) readCache() (policy.Line, error) {
	text, err := os.ReadFile(l.cfg.CacheFile)
	if err != nil {
		return policy.Line{}, err
	}
	line, replicas, err := parseCache(text)
	l.setReplicas(replicas)
	return line, err
}

// parseCache returns what a cache file holds. If its policies cannot be read, the rest may be.
func parseCache(text []byte) (line policy.Line, replicas int64, err error) {
	var beside besidePolicies
	_ = json.Unmarshal(text, &beside) // what is not in it stays zero
	line.Fell = beside.Fell
	line.Known, err = policy.UnmarshalSnapshot(text)
	return line, max(0, beside.Replicas), err
}

// formatCache returns a cache file, one JSON object.
func formatCache(line policy.Line, replicas int64) ([]byte, error) {
	text, err := policy.MarshalSnapshot(line.Known)
	if err != nil {
		return nil, err
	}
	beside, err := json.Marshal(besidePolicies{replicas, line.Fell})
	return slices.Concat(text[:len(text)-1], []byte(","), beside[1:]), err
}

// besidePolicies is what a cache file has beside the fields of a snapshot.
type besidePolicies struct {
	Replicas int64  `json:"replicas"`       // of the cluster, at the last count; 0 = unknown
	Fell     string `json:"fell,omitempty"` // see policy.Line
}

// useCache puts the policies of the cache file in force. Until ctx ends or the policy store
// answers, temporary policies end at their time.
func (l *Limiter) useCache(ctx context.Context, s policy.Snapshot, reason error) {
	l.log.Warn("the policies of the cache file apply until the policy store is followed",
		"file", l.cfg.CacheFile, "revision", s.Revision, "error", reason)
	s = s.At(time.Now())
	matches := l.engine.Match(s.Set)
	l.mu.Lock()
	inForce := !l.read // else the store has answered by now
	if inForce {
		if l.source == nil {
			l.source = reason
		}
		l.reported = true
		l.putInForce(s, matches)
		l.age(ctx)
	}
	l.mu.Unlock()
	if inForce {
		l.logFaults(s)
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
	line := l.line
	l.mu.Unlock()
	if line.Known.Set == nil {
		return
	}
	text, err := formatCache(line, l.replicas.Load())
	if err == nil {
		err = maybe.WriteFile(l.cfg.CacheFile, text, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrClosed) {
		l.log.Warn("the cache file could not be written",
			"file", l.cfg.CacheFile, "error", err)
	}
}
