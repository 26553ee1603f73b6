package console

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// records are the status records of all replicas in full, which explain needs. They are read once
// for all topics on view, and again after some seconds.
type records struct {
	store   dispatch.PermitStore
	cluster string

	mu    sync.Mutex
	until time.Time
	pace  pace
	all   []dispatch.Stats
	err   error
}

// read returns the records, which the caller may sort, but not change.
func (r *records) read(ctx context.Context) ([]dispatch.Stats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if start := time.Now(); start.After(r.until) {
		r.all, r.err = cli.Published(ctx, r.store, r.cluster)
		wait := time.Second
		if r.err == nil {
			wait = r.pace.next(wait, time.Since(start), 1)
		}
		r.until = time.Now().Add(wait)
		time.AfterFunc(2*wait, r.forget) // a thousand replicas take 100 MB
	}
	return slices.Clone(r.all), r.err
}

// forget frees what nobody has asked for lately.
func (r *records) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().After(r.until) {
		r.all, r.until = nil, time.Time{}
	}
}

// A pace is that of what is found out again and again. Its zero value has not seen it yet.
type pace struct {
	last time.Duration // that it took
}

// next returns how long something is new enough that took a time to find out: so long that it takes
// a twentieth of the time, together with others that take as long. Of this time and the last one
// the shorter counts: the other one may have been a wait for a store that did not answer.
func (p *pace) next(atLeast, took time.Duration, together int) time.Duration {
	usual := min(p.last, took)
	p.last = took
	return max(atLeast, 20*usual*time.Duration(together))
}
