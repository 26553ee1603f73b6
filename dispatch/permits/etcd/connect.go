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

// An attempt to connect goes on behind calls that do not wait for its end: with a password, etcd takes its time.
type attempt struct {
	done   chan struct{} // closed at its end; then there is a client, or an error
	client *clientv3.Client
	err    error
}

// connect returns the client, or why the last attempt to connect has failed; the next call makes another.
func (l *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, errors.New("etcd permit store: closed")
	}
	a := l.attempt
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		l.attempt = a
		go func() {
			defer close(a.done)
			a.client, a.err = l.dial()
			l.mu.Lock()
			defer l.mu.Unlock()
			switch {
			case a.err != nil:
				l.attempt = nil
			case !l.closed:
				var ctx context.Context
				ctx, l.still = context.WithCancel(l.config.Context)
				l.ticking.Go(func() { l.clock.run(ctx, a.client, permits.EtcdClock(l.prefix)) })
			}
		}()
	}
	l.mu.Unlock()
	var err error
	select {
	case <-a.done:
		err = a.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("etcd permit store: connect to %v: %w", l.config.Endpoints, err)
	}
	return a.client, nil
}

// dial connects. An etcd whose certificate is refused would only look as if it did not answer, so that is tried first.
func (l *Store) dial() (*clientv3.Client, error) {
	if l.config.TLS != nil {
		if err := l.handshake(); err != nil {
			return nil, err
		}
	}
	return clientv3.New(l.config)
}

// handshake returns why no endpoint can be talked to over TLS, nil if one can.
func (l *Store) handshake() error {
	var errs []error
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: l.timeout}, Config: l.config.TLS}
	for _, endpoint := range l.config.Endpoints {
		conn, err := dialer.DialContext(l.config.Context, "tcp", strings.TrimPrefix(endpoint, "https://"))
		if err == nil {
			_ = conn.Close() // nothing was sent
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", endpoint, probe.OfTLS(err)))
	}
	return errors.Join(errs...)
}

// onTime is connect that also waits until the clock is known.
func (l *Store) onTime(ctx context.Context) (*clientv3.Client, error) {
	client, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-l.clock.synced:
		return client, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("etcd permit store: what time it is there is not known yet: %w", l.clock.why(ctx.Err()))
	}
}
