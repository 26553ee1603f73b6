package cli

import (
	"context"
	"io"

	"github.com/dispatchthrottle/throttle/configstore"
)

// Ping asks a policy store for as little as possible.
func Ping(ctx context.Context, s configstore.Store) error {
	if s, ok := s.(interface {
		Ping(ctx context.Context) error
	}); ok {
		return s.Ping(ctx)
	}
	_, err := s.List(ctx)
	return err
}

// A PolicyPing asks the policy store of --policies whether it answers. It stays connected as long
// as the store answers: where etcd has passwords, a connection costs a login. One goroutine at a
// time may use it.
type PolicyPing struct {
	app   App
	store configstore.Store // nil while the store is not known to answer
}

// NewPolicyPing returns a PolicyPing that warns of nothing: the commands have warned.
func (a *App) NewPolicyPing() *PolicyPing {
	p := &PolicyPing{app: *a}
	p.app.Stderr = io.Discard
	return p
}

// Ask returns nil if the store answers before ctx ends.
func (p *PolicyPing) Ask(ctx context.Context) error {
	if p.store == nil {
		store, err := p.app.openPolicies(ctx)
		if err != nil {
			return err
		}
		p.store = store
	}
	err := Ping(ctx, p.store)
	if err != nil {
		p.Close() // a new connection is made sooner than an old one is made again
	}
	return err
}

// Close ends the connection. A later Ask makes a new one.
func (p *PolicyPing) Close() {
	if p.store != nil {
		_ = p.store.Close() // only read from
		p.store = nil
	}
}
