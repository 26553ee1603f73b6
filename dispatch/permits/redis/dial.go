package redispermits

import (
	"context"
	"net"
	"time"
)

// A dialFunc is [redis.Options.Dialer].
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

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
