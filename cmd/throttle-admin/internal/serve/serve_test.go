package serve

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// endless answers for as long as its client reads.
var endless = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	for {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return
		}
	}
})

// TestTimeouts: a client that is slow in any way loses its connection.
func TestTimeouts(t *testing.T) {
	const short = 50 * time.Millisecond
	assert.NotContains(t, []time.Duration{standard.header, standard.read, standard.write, standard.idle}, 0)
	mux := http.NewServeMux()
	mux.Handle("/endless", endless)
	mux.HandleFunc("/body", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	stop, at, err := listen("127.0.0.1:0", nil, mux, timeouts{short, short, short, short})
	require.NoError(t, err)
	defer stop()
	for name, request := range map[string]string{
		"header": "GET / HTTP/1.1\r\nHost: a\r\n",
		"read":   "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx",
		"idle":   "GET /none HTTP/1.1\r\nHost: a\r\n\r\n",
		"write":  "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n",
		"large":  "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", at.String())
			require.NoError(t, err)
			defer func() { assert.NoError(t, conn.Close()) }()
			_, err = io.WriteString(conn, request)
			require.NoError(t, err)
			if name == "write" {
				time.Sleep(4 * short) // while nothing is read
			}
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(throttletest.Patience)))
			_, err = io.Copy(io.Discard, bufio.NewReader(conn))
			assert.False(t, os.IsTimeout(err), "the connection has not ended: %v", err)
		})
	}
}

// TestTLS: the server speaks HTTP/2 over TLS, refuses clients without a certificate if it wants
// one, and presents a certificate that is replaced while it runs.
func TestTLS(t *testing.T) {
	server, client := services.TLS(t)
	var f TLS
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Flags(flags)
	cfg, err := f.Config()
	require.NoError(t, err)
	assert.Nil(t, cfg)
	require.NoError(t, flags.Parse([]string{"--tls-ca", server.CA}))
	_, err = f.Config()
	require.ErrorContains(t, err, "--tls-ca: comes with --tls-cert and --tls-key")
	require.NoError(t, flags.Parse([]string{"--tls-cert", server.Cert}))
	_, err = f.Config()
	require.ErrorContains(t, err, "--tls-cert and --tls-key: one is missing")
	require.NoError(t, flags.Parse([]string{"--tls-key", server.Key}))
	cfg, err = f.Config()
	require.NoError(t, err)
	stop, at, err := Listen("127.0.0.1:0", cfg, http.NotFoundHandler())
	require.NoError(t, err)
	defer stop()
	get := func(ca string, certificates ...tls.Certificate) (version int, err error) {
		pem, err := os.ReadFile(ca)
		require.NoError(t, err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		c := &http.Client{Transport: &http.Transport{
			ForceAttemptHTTP2: true,
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12},
		}}
		defer c.CloseIdleConnections()
		got, err := c.Get("https://" + at.String() + "/")
		if err != nil {
			return 0, err
		}
		return got.ProtoMajor, got.Body.Close()
	}
	pair, err := tls.LoadX509KeyPair(client.Cert, client.Key)
	require.NoError(t, err)
	got, err := get(server.CA, pair)
	require.NoError(t, err)
	assert.Equal(t, 2, got)
	_, err = get(server.CA)
	require.Error(t, err)
	require.Regexp(t, "certificate required|could not be established|broken pipe|connection reset", err)

	next, _ := services.TLS(t)
	for name, from := range map[string]string{server.Cert: next.Cert, server.Key: next.Key} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name, text, 0o600))
	}
	_, err = get(next.CA, pair)
	require.NoError(t, err)
}

func TestRemote(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": false, "[::1]:1": false, "localhost:1": false, "127.9.9.9:0": false,
		":1": true, "0.0.0.0:1": true, "[::]:1": true, "10.0.0.1:1": true, "host:1": true, "": true,
	} {
		assert.Equal(t, want, Remote(address), address)
	}
}
