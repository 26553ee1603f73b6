package cluster

import (
	"context"
	"time"
)

// An Outage says since when a store cannot be reached, and why. It is zero while it can.
type Outage struct {
	Since time.Time `json:"since,omitzero"`
	Error string    `json:"error,omitempty"`
}

// note takes over what asking the store at a time has returned.
func (o *Outage) note(err error, at time.Time) {
	switch {
	case err == nil:
		*o = Outage{}
		return
	case o.Error == "":
		o.Since = at
	}
	o.Error = err.Error()
}

const (
	askEvery = 2 * time.Second // the policy store, whether it answers
	askFor   = 2 * time.Second
)

// AskPolicies has Run ask, with a function, whether the policy store answers. The Status says it.
func (r *Reader) AskPolicies(ask func(context.Context) error) { r.ask = ask }

// followPolicies asks until ctx ends.
func (r *Reader) followPolicies(ctx context.Context) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		at := time.Now()
		asking, cancel := context.WithTimeout(ctx, askFor)
		err := r.ask(asking)
		cancel()
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.status.Policies.note(err, at)
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
