package etcd

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNoWayForBrowsers: a page that a browser shows cannot read from the server: not by its own
// origin, nor by a host name of its own that leads to this machine, nor through a gateway.
func TestNoWayForBrowsers(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", ":0"} {
		server, err := Start(t.Context(), t.TempDir(), listen, false)
		require.NoError(t, err)
		defer server.Close()
		_, address, _ := strings.Cut(URL(server), "://")
		address, _, _ = strings.Cut(address, "/")
		ask := func(method, path, host string) (status int, origin, text string) {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(`{"key":"AA=="}`))
			require.NoError(t, err)
			req.Host = host
			req.Header.Set("Origin", "http://evil.example")
			got, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			body, err := io.ReadAll(got.Body)
			require.NoError(t, err)
			require.NoError(t, got.Body.Close())
			return got.StatusCode, got.Header.Get("Access-Control-Allow-Origin"), string(body)
		}
		for _, host := range []string{address, "localhost:2379", "127.0.0.1"} {
			status, origin, _ := ask(http.MethodGet, "/version", host)
			assert.Equal(t, http.StatusOK, status, host)
			assert.Empty(t, origin, "no CORS")
		}
		_, origin, _ := ask(http.MethodOptions, "/version", address)
		assert.Empty(t, origin)
		status, _, text := ask(http.MethodPost, "/v3/kv/range", address)
		assert.Equal(t, http.StatusNotFound, status, "a gateway: %s", text)
		status, _, _ = ask(http.MethodGet, "/version", "evil.example:2379")
		assert.Equal(t, http.StatusMisdirectedRequest, status)
	}
}

// TestCompaction: history is removed, so that permits do not fill the server.
func TestCompaction(t *testing.T) {
	server, err := Start(t.Context(), t.TempDir(), "127.0.0.1:0", false)
	require.NoError(t, err)
	defer server.Close()
	assert.Equal(t, time.Minute, server.Server.Cfg.AutoCompactionRetention)
	assert.Equal(t, "periodic", server.Server.Cfg.AutoCompactionMode)
}
