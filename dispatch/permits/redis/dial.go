package redispermits

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// A dialFunc is [redis.Options.Dialer].
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// tcp returns a dial that takes no longer than timeout.
func tcp(timeout time.Duration) dialFunc {
	return redis.NewDialer(&redis.Options{DialTimeout: timeout})
}

// A secureFunc makes a connection to addr secure, or closes it.
type secureFunc = func(ctx context.Context, conn net.Conn, addr string) (net.Conn, error)

// overTLS returns a function that makes a TLS handshake with the configuration of the moment.
// Without one, it leaves connections as they are.
func overTLS(config func() (*tls.Config, error)) secureFunc {
	return func(ctx context.Context, conn net.Conn, addr string) (net.Conn, error) {
		if config == nil {
			return conn, nil
		}
		cfg, err := config()
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		secure := tls.Client(conn, named(cfg, addr))
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return explained{secure}, nil
	}
}

// explained is a connection over TLS whose failed writes say why. A server that does not accept the
// client's certificate says so after the handshake, and closes the connection; then a write fails
// before that is read.
type explained struct{ *tls.Conn }

func (c explained) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		_, why := c.Read(make([]byte, 1)) // does not wait: the connection has ended
		if alert, ok := errors.AsType[*net.OpError](why); ok && alert.Op == "remote error" {
			err = why
		}
	}
	return n, err
}

// named returns cfg with the name that the certificate of the server at addr must have.
func named(cfg *tls.Config, addr string) *tls.Config {
	if cfg.ServerName != "" {
		return cfg
	}
	cfg = cfg.Clone()
	cfg.ServerName, _, _ = net.SplitHostPort(addr) // "" fits no certificate
	return cfg
}

// quiet returns a dial that never fails; where dial does, the connection fails when it is used.
// go-redis writes each failed dial to standard error, and after as many as its pool is large it
// dials only once a second.
func quiet(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return failed{dialError{err}}, nil
		}
		return conn, nil
	}
}

// bounded returns a dial that also makes connections secure, takes no longer than timeout, and
// whose connections wait no longer than that for the other side. go-redis asks Sentinels for the
// master without the context of the call that needs it.
func bounded(dial dialFunc, secure secureFunc, timeout *permits.Timeout) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout.Current())
		defer cancel()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if socket, ok := conn.(syscall.Conn); ok {
			conn = timed{conn, socket, timeout}
		}
		return secure(ctx, conn, addr)
	}
}

// A timed is a socket whose deadlines are a time-out away at most. go-redis looks at the socket to
// see whether the other side has closed it.
type timed struct {
	net.Conn
	socket  syscall.Conn
	timeout *permits.Timeout
}

func (c timed) SyscallConn() (syscall.RawConn, error) { return c.socket.SyscallConn() }

func (c timed) SetReadDeadline(t time.Time) error  { return c.Conn.SetReadDeadline(c.bound(t)) }
func (c timed) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.bound(t)) }

func (c timed) bound(t time.Time) time.Time {
	if latest := time.Now().Add(c.timeout.Current()); t.After(latest) {
		return latest
	}
	return t // may be zero: no deadline
}

// A dialError is one layer around the error of a dial: go-redis removes the outermost of one that
// it gets from a new connection.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// failed is a connection that could not be made: each use returns why.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error)         { return 0, f.err }
func (f failed) Write([]byte) (int, error)        { return 0, f.err }
func (f failed) Close() error                     { return nil }
func (f failed) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (f failed) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (f failed) SetDeadline(time.Time) error      { return nil }
func (f failed) SetReadDeadline(time.Time) error  { return nil }
func (f failed) SetWriteDeadline(time.Time) error { return nil }
