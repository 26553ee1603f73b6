package permitstest

import (
	"context"
	"iter"
	"sync"

	"github.com/dispatchthrottle/throttle/policy"
)

// Policies is a dispatch.PolicySource that a test controls. Its zero value yields nothing.
type Policies struct {
	mu       sync.Mutex
	snapshot policy.Snapshot
	has      bool          // there is a snapshot
	err      error         // yielded instead, if it is not nil
	changed  chan struct{} // closed by the next change
}

// Set puts policies in force, at the next revision.
func (p *Policies) Set(s *policy.Set) {
	p.change(func() {
		p.snapshot = policy.Snapshot{Set: s, Identity: "test", Revision: p.snapshot.Revision + 1}
		p.has, p.err = true, nil
	})
}

// Fail makes the source yield an error, or nothing if err is nil, until the next Set.
func (p *Policies) Fail(err error) {
	p.change(func() { p.has, p.err = false, err })
}

func (p *Policies) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Snapshots implements dispatch.PolicySource.
func (p *Policies) Snapshots(ctx context.Context) iter.Seq2[policy.Snapshot, error] {
	return func(yield func(policy.Snapshot, error) bool) {
		for ctx.Err() == nil {
			p.mu.Lock()
			if p.changed == nil {
				p.changed = make(chan struct{})
			}
			snapshot, has, err, changed := p.snapshot, p.has, p.err, p.changed
			p.mu.Unlock()
			if err != nil {
				snapshot = policy.Snapshot{}
			}
			if (has || err != nil) && !yield(snapshot, err) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}
