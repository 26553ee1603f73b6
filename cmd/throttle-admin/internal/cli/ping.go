package cli

import (
	"context"
	"io"

	"github.com/dispatchthrottle/throttle/configstore"
)

// PingPolicies asks the policy store of --policies for as little as possible. Several goroutines
// may call it.
func (a *App) PingPolicies(ctx context.Context) error {
	quiet := *a
	quiet.Stderr = io.Discard // the commands have warned
	return quiet.WithStore(ctx, func(ctx context.Context, s configstore.Store) error {
		if s, ok := s.(interface {
			Ping(ctx context.Context) error
		}); ok {
			return s.Ping(ctx)
		}
		_, err := s.List(ctx)
		return err
	})
}
