// Package ratekeeper computes the rates of throughput quotas. Any number of processes may run a
// ratekeeper; one of them is elected. Once a second, it adds up the reports of all replicas,
// decides with package quota, and writes the rates into the permit store, where the replicas read
// them.
//
//	keeper := &ratekeeper.Ratekeeper{Policies: source, Permits: permits, Elector: store}
//	err := keeper.Run(ctx) // until ctx ends
//
// throttle.WithRatekeeper runs a ratekeeper in a process that has a Limiter. The command
// `throttle-admin ratekeeper` runs one by itself.
package ratekeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// every is the time between two passes.
const every = time.Second

// statusTTL is how long a published Status counts.
const statusTTL = 3 * time.Second

// A Ratekeeper is one candidate. Set the fields before Run; Policies and Permits are required.
type Ratekeeper struct {
	Policies dispatch.PolicySource
	Permits  dispatch.PermitStore
	Elector  Elector      // default: a takeover when the rates in Permits are 5 s old
	Cluster  string       // default "standalone"
	Name     string       // unique; default: host name, process id and a random part
	Logger   *slog.Logger // gets an event for each decision, with all inputs; nil: silent

	// MaxIDs bounds the ids without a quota that are followed from one backend's report: the
	// costliest. Default 1000.
	MaxIDs int

	mu       sync.Mutex // guards the fields below
	snapshot policy.Snapshot
	status   Status
	reports  map[string]*keptReport // the newest of each backend, of those that came over HTTP

	reportBytes int       // of reports
	sweptAt     time.Time // when old reports were last removed
}

// Run takes part in the election until ctx ends, and then returns nil. It returns an error only for
// invalid fields. Later failures are logged, and Run tries again.
func (r *Ratekeeper) Run(ctx context.Context) error {
	if r.Policies == nil || r.Permits == nil {
		return errors.New("ratekeeper: set both Policies and Permits")
	}
	if r.MaxIDs < 0 {
		return fmt.Errorf("ratekeeper: MaxIDs %d: is invalid: want 1 or more, or 0 for 1000",
			r.MaxIDs)
	}
	host, _ := os.Hostname() // may be empty
	r.Cluster = cmp.Or(r.Cluster, "standalone")
	r.Name = cmp.Or(r.Name, fmt.Sprintf("%s-%d-%04x", host, os.Getpid(), rand.Uint32N(1<<16)))
	if r.Elector == nil {
		r.Elector = byPermits{r}
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	var following sync.WaitGroup
	known := make(chan struct{})
	following.Go(func() { r.follow(ctx, known) })
	defer following.Wait()
	select { // a process without policies cannot lead
	case <-known:
	case <-ctx.Done():
	}
	for failed := ""; ctx.Err() == nil; {
		err := r.Elector.Elect(ctx, r.Cluster, r.Name, r.lead)
		if err != nil && ctx.Err() == nil && err.Error() != failed {
			failed = err.Error()
			r.Logger.Warn("the election of a ratekeeper failed; retrying", "error", err)
		} else if err == nil {
			failed = ""
		}
		sleep(ctx, every)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// follow keeps r.snapshot up to date with policies that may replace the last ones. It closes known
// when the first policies arrive.
func (r *Ratekeeper) follow(ctx context.Context, known chan<- struct{}) {
	var line policy.Line
	for s, err := range r.Policies.Snapshots(ctx) {
		if err == nil {
			err = line.Follow(s)
		}
		if err != nil {
			r.Logger.Warn("cannot read the policies; the last quotas stay in force", "error", err)
			continue
		}
		r.mu.Lock()
		if r.snapshot.Set == nil {
			close(known)
		}
		r.snapshot = line.Known
		r.mu.Unlock()
	}
}

// policies returns the last snapshot, as it is now. Its Set is nil if no policies have arrived yet.
func (r *Ratekeeper) policies() policy.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.snapshot.Set != nil {
		r.snapshot = r.snapshot.At(time.Now())
	}
	return r.snapshot
}

// Status returns the last decisions. Term is 0 while this candidate is not the leader.
func (r *Ratekeeper) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}
