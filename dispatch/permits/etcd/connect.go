package etcdpermits

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/internal/probe"
)

// An attempt to connect continues after the calls that have started it have timed out: with a
// password, etcd takes its time.
type attempt struct {
	done   chan struct{} // closed when there is a client, or an error
	client *clientv3.Client
	err    error
}

// connect returns the client, or why the last attempt to connect has failed; the next call makes
// another one.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errors.New("etcd permit store: closed")
	}
	a := s.attempt
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		s.attempt = a
		go func() {
			defer close(a.done)
			a.client, a.err = s.dial()
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case a.err != nil:
				s.attempt = nil
			case !s.closed:
				var ctx context.Context
				ctx, s.stopRuns = context.WithCancel(s.config.Context)
				s.runs.Go(func() {
					s.clock.run(ctx, a.client, permits.EtcdClock(s.prefix), s.space.err)
				})
				s.runs.Go(func() { s.space.run(ctx, a.client.ActiveConnection()) })
			}
		}()
	}
	s.mu.Unlock()
	var err error
	select {
	case <-a.done:
		err = a.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, wrap(fmt.Sprintf("connect to %v", s.config.Endpoints), err)
	}
	return a.client, nil
}

// dial connects. A refused certificate would only look like an etcd that does not answer, so that
// the handshake is tried first.
func (s *Store) dial() (*clientv3.Client, error) {
	if s.tls != nil {
		cfg, err := s.tls()
		if err == nil {
			err = s.handshake(cfg)
		}
		if err != nil {
			return nil, err
		}
	}
	return clientv3.New(s.config)
}

// handshake returns why no endpoint can be reached over TLS; nil if one can.
func (s *Store) handshake(cfg *tls.Config) error {
	var errs []error
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: s.timeout.Max()}, Config: cfg}
	for _, endpoint := range s.config.Endpoints {
		conn, err := dialer.DialContext(s.config.Context, "tcp",
			strings.TrimPrefix(endpoint, "https://"))
		if err == nil {
			_ = conn.Close() // nothing was sent
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", endpoint, probe.OfTLS(err)))
	}
	return errors.Join(errs...)
}

// onTime returns the client when the clock is known, too.
func (s *Store) onTime(ctx context.Context) (*clientv3.Client, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.clock.await(ctx); err != nil {
		return nil, wrap("its clock is not known yet", err)
	}
	return client, nil
}

// writable is onTime, unless etcd is almost full.
func (s *Store) writable(ctx context.Context) (*clientv3.Client, error) {
	if err := s.space.err(); err != nil {
		return nil, fmt.Errorf("etcd permit store: %w", err)
	}
	return s.onTime(ctx)
}
