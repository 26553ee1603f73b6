package console

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A tunnel forwards connections to a console. While it is dead, it closes none, and forwards
// nothing.
type tunnel struct {
	net.Conn
	dead *atomic.Bool
}

func (t tunnel) Write(p []byte) (int, error) {
	if t.dead.Load() {
		return len(p), nil
	}
	return t.Conn.Write(p)
}

// TestDeadTunnel: a page says that its console does not answer, also if nothing closes the
// connection, and goes on when it answers.
func TestDeadTunnel(t *testing.T) {
	t.Parallel()
	s := open(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var dead atomic.Bool
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			browser, err := listener.Accept()
			if err != nil {
				return
			}
			console, err := net.Dial("tcp", s.address)
			if !assert.NoError(t, err) {
				return
			}
			for from, to := range map[net.Conn]net.Conn{browser: console, console: browser} {
				forwarding.Go(func() {
					_, _ = io.Copy(tunnel{to, &dead}, from) // until one end closes
					_ = to.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		forwarding.Wait()
	})
	w := look(t, s)
	w.url = "http://" + listener.Addr().String()
	w.show("/")
	w.until(orders)
	dead.Store(true)
	w.until("the console does not answer since")
	dead.Store(false)
	throttletest.Until(t, "the page goes on", func() bool { return !strings.Contains(w.text(), "does not answer") })
	w.check()
}
