package console

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// answers reports whether the console answers.
func answers(t *testing.T, address string) bool {
	t.Helper()
	client := http.Client{Timeout: throttletest.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Get("http://" + address + "/api/overview")
	if err != nil {
		t.Log(err)
		return false
	}
	defer func() { _ = got.Body.Close() }()
	_, err = io.Copy(io.Discard, got.Body)
	return err == nil && got.StatusCode == http.StatusOK
}

// endless is a body of which some bytes are left.
type endless struct{ left atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	n := min(int64(len(p)), e.left.Load())
	if n == 0 {
		return 0, io.EOF
	}
	e.left.Add(-n)
	return int(n), nil
}

// TestLargeBody: a gigabyte of body is not read.
func TestLargeBody(t *testing.T) {
	s := open(t)
	address := s.address
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		body := &endless{}
		body.left.Store(1 << 30)
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+"/api/overview", body)
		require.NoError(t, err)
		r.ContentLength = 1 << 30
		if got, err := http.DefaultTransport.RoundTrip(r); err == nil {
			_ = got.Body.Close()
		}
		assert.Greater(t, body.left.Load(), int64(1<<29), "%s: most of it was never sent", method)
	}
	assert.True(t, answers(t, address))
}

// TestManyConnections: ten thousand connections that say nothing take little memory, and keep the
// console from others only until their time to say something is over.
func TestManyConnections(t *testing.T) {
	s := open(t)
	address := s.address
	goroutines := runtime.NumGoroutine()
	const tries, dialers = 10_000, 2500
	conns := make(chan net.Conn, tries)
	defer func() {
		for c := range conns {
			_ = c.Close()
		}
	}()
	dialer := net.Dialer{Timeout: time.Second}
	var dialing sync.WaitGroup
	for range dialers {
		dialing.Go(func() {
			for i := range tries / dialers {
				c, err := dialer.Dial("tcp", address)
				if err != nil {
					continue // the backlog is full
				}
				if i == 0 {
					_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: ")
				}
				conns <- c
			}
		})
	}
	dialing.Wait()
	close(conns)
	assert.Greater(t, len(conns), 1000)
	assert.Less(t, runtime.NumGoroutine()-goroutines, 3000)
	throttletest.Until(t, "it answers again", func() bool { return answers(t, address) })
}

// TestHeaders: what is too long or no HTTP ends the connection.
func TestHeaders(t *testing.T) {
	s := open(t)
	address := s.address
	for want, request := range map[string]string{
		"431": "GET / HTTP/1.1\r\nHost: " + address + "\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"400": "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"421": "GET / HTTP/1.0\r\n\r\n",
	} {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		_, err = io.WriteString(c, request)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(throttletest.Patience)))
		text, _ := io.ReadAll(c)
		assert.Contains(t, string(text[:min(len(text), 40)]), fmt.Sprintf(" %s ", want))
		require.NoError(t, c.Close())
	}
	assert.True(t, answers(t, address))
}
