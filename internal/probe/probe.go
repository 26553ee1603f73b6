// Package probe finds out why a server cannot be used when its client only reports a timeout.
package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// timeout is the longest that Why takes.
const timeout = 250 * time.Millisecond

// Why connects to each address, a host:port, with TLS if cfg is not nil. It returns one error for
// each address that cannot be used, with the address and the reason in it.
func Why(ctx context.Context, addrs []string, cfg *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	errs := make([]error, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			if err := check(ctx, addr, cfg); err != nil {
				errs[i] = fmt.Errorf("%s: %w", addr, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func check(ctx context.Context, addr string, cfg *tls.Config) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return plain(err)
	}
	defer func() { _ = conn.Close() }() // no data was sent
	if cfg != nil {
		return handshake(ctx, conn, addr, cfg)
	}
	// Only a server with TLS answers a handshake, whether or not it accepts this client.
	err = handshake(ctx, conn, addr, &tls.Config{MinVersion: tls.VersionTLS12})
	if err == nil || fromTLS(err) {
		return errWantsTLS
	}
	if ctx.Err() != nil {
		return errors.New("the server accepts connections and does not answer")
	}
	return nil
}

var (
	// errWantsTLS reports a server that requires TLS, for a URL without it.
	errWantsTLS = errors.New("the server requires TLS: add ?tls=true to the URL, or ?ca=FILE " +
		"with the certificate of its authority")

	// errNoTLS reports a server without TLS, for a URL with it.
	errNoTLS = errors.New("no TLS handshake: the server seems to have no TLS: remove TLS from " +
		"the URL, or check the port")
)

// handshake performs a TLS handshake with addr, a host:port. Its error wraps errNoTLS if the server
// does not seem to use TLS.
func handshake(ctx context.Context, conn net.Conn, addr string, cfg *tls.Config) error {
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return OfTLS(tls.Client(conn, cfg).HandshakeContext(ctx))
}

// OfTLS adds errNoTLS to the error of a dial over TLS, unless a server with TLS has caused it or
// the server could not be reached.
func OfTLS(err error) error {
	op, ok := errors.AsType[*net.OpError](err)
	if err == nil || fromTLS(err) || ok && op.Op == "dial" {
		return err
	}
	return fmt.Errorf("%w (%w)", errNoTLS, plain(err))
}

// fromTLS reports whether a server with TLS has made a handshake fail.
func fromTLS(err error) bool {
	_, alert := errors.AsType[tls.AlertError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	return alert || certificate || authority
}

// plain returns err without the addresses of the connection; one of them is an ephemeral port.
func plain(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}
