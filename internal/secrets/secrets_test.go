package secrets_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/internal/secrets"
	"github.com/dispatchthrottle/throttle/tests/services"
)

func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "password")
	password := secrets.File(name)
	for _, want := range []string{"old", "new"} {
		require.NoError(t, os.WriteFile(name, []byte(want+"\n"), 0o600))
		got, err := password()
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	require.NoError(t, os.WriteFile(name, []byte("\n"), 0o600))
	_, err := password()
	require.ErrorContains(t, err, name+": is empty")
	require.NoError(t, os.Remove(name))
	_, err = password()
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestExposed(t *testing.T) {
	name := filepath.Join(t.TempDir(), "key")
	require.NoError(t, secrets.Exposed(name), "a missing file is reported by those who open it")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	for mode, fine := range map[os.FileMode]bool{
		0o400: true, 0o600: true, 0o640: true, 0o440: true, 0o644: false, 0o660: false, 0o604: false, 0o620: false, 0o700: true,
	} {
		require.NoError(t, os.Chmod(name, mode))
		err := secrets.Exposed(name)
		if fine {
			require.NoError(t, err, "%04o", mode)
		} else {
			require.ErrorContains(t, err, fmt.Sprintf("%s: mode %04o", name, mode))
		}
	}
}

// TestTLS: a client follows its files, and keeps the last configuration that they held.
func TestTLS(t *testing.T) {
	server, client := services.TLS(t)
	next, _ := services.TLS(t)
	files := &secrets.TLS{CA: client.CA, Cert: client.Cert, Key: client.Key, Names: "option %s"}
	first, err := files.Config()
	require.NoError(t, err)
	again, err := files.Config()
	require.NoError(t, err)
	assert.True(t, first.RootCAs.Equal(again.RootCAs))

	text, err := os.ReadFile(next.CA)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(client.CA, text, 0o600))
	after, err := files.Config()
	require.NoError(t, err)
	assert.False(t, first.RootCAs.Equal(after.RootCAs))

	require.NoError(t, os.WriteFile(client.Key, nil, 0o600)) // while it is written
	kept, err := files.Config()
	require.NoError(t, err)
	assert.Same(t, after, kept)

	for _, c := range []struct {
		files *secrets.TLS
		want  string
	}{
		{&secrets.TLS{CA: "/does/not/exist"}, "option ca: open /does/not/exist"},
		{&secrets.TLS{CA: server.Key}, "option ca: " + server.Key + ": no PEM certificate in it"},
		{&secrets.TLS{Cert: server.Cert}, "option cert and option key: one is missing"},
		{&secrets.TLS{Cert: server.Cert, Key: client.Key}, "option cert and option key: "},
	} {
		c.files.Names = "option %s"
		_, err := c.files.Config()
		require.ErrorContains(t, err, c.want)
		_, err = c.files.Listener()
		require.ErrorContains(t, err, c.want)
	}
}

// TestListener: a listener presents the certificate that its files hold, and asks clients for one
// if it has an authority for them.
func TestListener(t *testing.T) {
	server, client := services.TLS(t)
	next, stranger := services.TLS(t)
	files := &secrets.TLS{CA: server.CA, Cert: server.Cert, Key: server.Key, Names: "--tls-%s"}
	cfg, err := files.Listener()
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	require.NoError(t, err)
	var accepting sync.WaitGroup
	defer accepting.Wait()
	defer func() { assert.NoError(t, l.Close()) }()
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("x")) // the handshake comes first
			_ = conn.Close()
		}
	})
	dial := func(c services.Certificates) error {
		own := &secrets.TLS{CA: c.CA, Cert: c.Cert, Key: c.Key, Names: "%s"}
		cfg, err := own.Config()
		require.NoError(t, err)
		conn, err := tls.Dial("tcp", l.Addr().(*net.TCPAddr).String(), cfg)
		if err != nil {
			return err
		}
		defer func() { assert.NoError(t, conn.Close()) }()
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	require.NoError(t, dial(client))
	require.ErrorContains(t, dial(services.Certificates{CA: client.CA}), "certificate required")
	require.Error(t, dial(stranger))
	for name, from := range map[string]string{server.CA: next.CA, server.Cert: next.Cert, server.Key: next.Key} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name, text, 0o600))
	}
	require.NoError(t, dial(stranger), "no longer a stranger")
	require.Error(t, dial(services.Certificates{CA: next.CA, Cert: client.Cert, Key: client.Key}))
}
