// Package probe finds out why a server cannot be used, where its client only says that time is up.
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

// Timeout is the longest that Why takes.
const Timeout = 250 * time.Millisecond

// Why connects to each address, a host:port, with TLS if cfg is not nil, and returns what stands in
// the way: one error for each address at which something does, with the address in it.
func Why(ctx context.Context, addrs []string, cfg *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
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
		return Plain(err)
	}
	defer func() { _ = conn.Close() }() // nothing was sent that matters
	if cfg != nil {
		return Handshake(ctx, conn, addr, cfg)
	}
	// Only a server with TLS answers a handshake. What it thinks of this client does not matter.
	err = Handshake(ctx, conn, addr, &tls.Config{MinVersion: tls.VersionTLS12})
	if err == nil || fromTLS(err) {
		return ErrWantsTLS
	}
	if ctx.Err() != nil {
		return errors.New("accepts connections and does not answer")
	}
	return nil
}

var (
	// ErrWantsTLS reports a server that speaks TLS to a client that does not.
	ErrWantsTLS = errors.New("the server wants TLS, which the URL does not ask for: add ?tls=true, or name its authority with ca=FILE")

	// ErrNoTLS reports what does not speak TLS to a client that does.
	ErrNoTLS = errors.New("no TLS handshake: the server seems to be one without TLS, for which the URL must not ask for TLS, or the port is wrong")
)

// Handshake makes a TLS handshake with addr, a host:port. Its error wraps ErrNoTLS if the other side
// does not seem to speak TLS.
func Handshake(ctx context.Context, conn net.Conn, addr string, cfg *tls.Config) error {
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return OfTLS(tls.Client(conn, cfg).HandshakeContext(ctx))
}

// OfTLS makes an error of ErrNoTLS if a dial over TLS failed, and not on what a server with TLS has said.
func OfTLS(err error) error {
	op, ok := errors.AsType[*net.OpError](err)
	if err == nil || fromTLS(err) || ok && op.Op == "dial" {
		return err
	}
	return fmt.Errorf("%w (%w)", ErrNoTLS, Plain(err))
}

// fromTLS tells whether a handshake failed on what a server with TLS has said.
func fromTLS(err error) bool {
	_, alert := errors.AsType[tls.AlertError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	return alert || certificate || authority
}

// Plain is err without the addresses of the connection, of which one is a port that nobody chose.
func Plain(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}
