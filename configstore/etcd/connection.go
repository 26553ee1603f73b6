package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/etcdclient"
	"github.com/dispatchthrottle/throttle/internal/probe"
	"github.com/dispatchthrottle/throttle/internal/role"
)

// connect returns the client. With a password it waits for etcd, at most until ctx ends, one
// caller at a time.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, configstore.ErrClosed
	}
	if s.client == nil {
		cfg := *s.config
		life, cancel := context.WithCancel(s.ctx) // outlives ctx once the client is connected
		stop := context.AfterFunc(ctx, cancel)
		cfg.Context = life
		client, err := clientv3.New(cfg)
		if !stop() { // ctx has ended
			if err == nil {
				_ = client.Close() // its own context has ended, too
			}
			err = context.Cause(ctx)
		}
		if err != nil {
			cancel()
			return nil, s.wrap("connect", err)
		}
		s.client = client
	}
	return s.client, nil
}

// Close implements configstore.Store.
func (s *Store) Close() error {
	s.end(configstore.ErrClosed) // first, so that a connect that hangs releases the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config == nil || s.client == nil {
		return nil
	}
	client := s.client
	s.client = nil
	if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("configstore/etcd: close: %w", err)
	}
	return nil
}

// bind returns a context that ends with ctx or with the store.
func (s *Store) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(configstore.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// roles are the roles of those who do what only they may.
var roles = map[string]role.Role{
	"apply": role.Admin, "adopt": role.Admin, "history": role.Viewer, "wait for the election": role.Ratekeeper,
}

// wrap adds what failed and, if the user lacks a right, how it is granted; it returns ErrClosed if
// the store was closed. If etcd did not answer, it adds why, as far as a new connection tells, and
// the error is a timeout.
func (s *Store) wrap(doing string, err error) error {
	if s.ctx.Err() != nil {
		return configstore.ErrClosed
	}
	if role.DeniedByEtcd(err) {
		err = role.Denied(err, role.Etcd, roles[doing])
	}
	wrapped := fmt.Errorf("configstore/etcd: %s: %w", doing, err)
	unanswered := errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.Unavailable
	if s.config == nil || !unanswered {
		return wrapped
	}
	if why := s.why(); why != nil {
		return timeoutError{fmt.Errorf("%w: %w", wrapped, why)}
	}
	return timeoutError{fmt.Errorf("%w: %s", wrapped, strings.Join(s.config.Endpoints, ", "))}
}

// why returns why etcd does not answer, as far as a new connection tells.
func (s *Store) why() error {
	var cfg *tls.Config
	if s.tls != nil {
		var err error
		if cfg, err = s.tls(); err != nil {
			return err
		}
	}
	return probe.Why(s.ctx, s.config.Endpoints, cfg)
}

// A timeoutError says that etcd did not answer, in whatever form the client reported that.
type timeoutError struct{ error }

func (e timeoutError) Unwrap() error { return e.error }

// Timeout implements the method of net.Error.
func (e timeoutError) Timeout() bool { return true }

// Ping asks etcd for as little as possible.
func (s *Store) Ping(ctx context.Context) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	_, err = client.Get(ctx, s.prefix+markerPart)
	if err != nil {
		return s.wrap("ping", err)
	}
	return nil
}

// Health asks etcd how it is.
func (s *Store) Health(ctx context.Context) (etcdclient.Health, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return etcdclient.Health{}, err
	}
	h, err := etcdclient.HealthOf(ctx, client, s.prefix+markerPart)
	if err != nil {
		err = s.wrap("ask for its state", err)
	}
	return h, err
}
