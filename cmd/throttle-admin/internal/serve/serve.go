// Package serve holds the HTTP servers of throttle-admin and the flags of their TLS.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/net/netutil"

	"github.com/dispatchthrottle/throttle/internal/secrets"
)

// TLS are the flags with the files of a server's TLS. The servers of this package
// read them again for each connection.
type TLS struct{ Cert, Key, ClientCA string }

// Flags adds the flags.
func (t *TLS) Flags(flags *pflag.FlagSet) {
	flags.StringVar(&t.Cert, "tls-cert", "", "PEM file of this server's certificate; turns TLS on")
	flags.StringVar(&t.Key, "tls-key", "", "PEM file of that certificate's key; turns TLS on")
	flags.StringVar(&t.ClientCA, "tls-ca", "",
		"PEM file; clients must present a certificate of one of these authorities (default none)")
}

// Config returns the configuration, nil without TLS.
func (t *TLS) Config() (*tls.Config, error) {
	switch {
	case *t == TLS{}:
		return nil, nil
	case t.Cert == "" && t.Key == "":
		return nil, errors.New("--tls-ca: comes with --tls-cert and --tls-key: want all three")
	}
	files := &secrets.TLS{CA: t.ClientCA, Cert: t.Cert, Key: t.Key, Names: "--tls-%s"}
	return files.Listener()
}

// timeouts bound what a client can hold.
type timeouts struct{ header, read, write, idle time.Duration }

var standard = timeouts{
	header: 5 * time.Second, read: 10 * time.Second, write: 20 * time.Second, idle: time.Minute,
}

// maxHeader is the largest size of a request's header, in bytes.
const maxHeader = 16 << 10

// maxConnections is how many connections are open at once; others wait.
const maxConnections = 1000

// Listen serves h at an address until stop is called: by TLS, if secure is not nil.
func Listen(
	address string, secure *tls.Config, h http.Handler,
) (stop func(), at net.Addr, err error) {
	return listen(address, secure, h, standard)
}

func listen(
	address string, secure *tls.Config, h http.Handler, bounds timeouts,
) (stop func(), at net.Addr, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	l = netutil.LimitListener(l, maxConnections)
	s := &http.Server{
		Handler: h, TLSConfig: secure, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: bounds.header, ReadTimeout: bounds.read, WriteTimeout: bounds.write,
		IdleTimeout: bounds.idle,
		ErrorLog:    log.New(io.Discard, "", 0), // of clients' faults, one line for each
	}
	go func() { // returns when stop is called
		if secure != nil {
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = errors.Join(s.Shutdown(ctx), s.Close()) // Close ends requests that are left
	}, l.Addr(), nil
}

// Remote reports whether an address to listen at can be reached from other machines.
func Remote(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	return secrets.Remote(host)
}
