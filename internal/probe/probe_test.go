package probe_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/internal/probe"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestWhy pairs clients with servers that fit and that do not.
func TestWhy(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.StartTLS()
	defer secure.Close()
	ours := httptest.NewUnstartedServer(http.NotFoundHandler())
	ours.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	ours.StartTLS()
	defer ours.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, silent.Close()) }()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	known := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	known.RootCAs.AddCert(secure.Certificate())
	unknown := &tls.Config{MinVersion: tls.VersionTLS12}
	for name, c := range map[string]struct {
		addr string
		cfg  *tls.Config
		want string // of the error; "" = none
	}{
		"plain, plain":         {plain.Listener.Addr().String(), nil, ""},
		"plain, TLS":           {secure.Listener.Addr().String(), nil, "add ?tls=true"},
		"plain, TLS for known": {ours.Listener.Addr().String(), nil, "add ?tls=true"},
		"TLS, TLS":             {secure.Listener.Addr().String(), known, ""},
		"TLS, unknown TLS":     {secure.Listener.Addr().String(), unknown, "unknown authority"},
		"TLS, plain":           {plain.Listener.Addr().String(), known, "seems to have no TLS"},
		"plain, silent":        {silent.Addr().String(), nil, "does not answer"},
		"TLS, silent":          {silent.Addr().String(), known, "seems to have no TLS"},
		"plain, closed":        {closed.Addr().String(), nil, "connection refused"},
		"TLS, closed":          {closed.Addr().String(), known, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			fits := func(err error) bool {
				return c.want == "" && err == nil ||
					c.want != "" && err != nil && strings.Contains(err.Error(), c.want)
			}
			var err error
			throttletest.Until(t, "the result is right", func() bool { // a handshake may take over 250 ms
				if err = probe.Why(t.Context(), []string{c.addr}, c.cfg); !fits(err) {
					t.Log(err)
				}
				return fits(err)
			})
			if c.want != "" {
				assert.ErrorContains(t, err, c.addr+": ")
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, probe.Why(ctx, []string{plain.Listener.Addr().String()}, nil))
}

// TestHandshakeWithLines: a server with a protocol of lines takes the handshake for one of them.
func TestHandshakeWithLines(t *testing.T) {
	client, server := net.Pipe()
	var answering sync.WaitGroup
	defer answering.Wait()
	defer func() { _ = client.Close() }()
	answering.Go(func() {
		_, _ = server.Read(make([]byte, 10_000))
		_, _ = io.WriteString(server, "-ERR unknown command\r\n")
		_ = server.Close()
	})
	err := probe.Handshake(t.Context(), client, "a:1", &tls.Config{MinVersion: tls.VersionTLS12})
	require.ErrorIs(t, err, probe.ErrNoTLS)
}
