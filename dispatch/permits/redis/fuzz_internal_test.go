package redispermits

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// FuzzLogin: whatever a Sentinel answers to AUTH, the login ends, and only +OK is a success. No
// error repeats the arguments of AUTH.
func FuzzLogin(f *testing.F) {
	f.Add([]byte("+OK\r\n"))
	f.Add([]byte("+OK"))
	f.Add([]byte("-ERR unknown command 'AUTH', with args beginning with: 'geheim'\r\n"))
	f.Add([]byte("$99999999999999\r\n"))
	f.Add(bytes.Repeat([]byte("-e"), 500))
	f.Fuzz(func(t *testing.T, answer []byte) {
		promptly.Do(t, func() {
			ours, theirs := net.Pipe()
			var answering sync.WaitGroup
			defer answering.Wait()
			defer ours.Close()
			answering.Go(func() {
				defer theirs.Close()
				if _, err := theirs.Read(make([]byte, 512)); err == nil {
					_, _ = theirs.Write(answer) // the login may have read enough
				}
			})
			password := func() (string, error) { return "geheim", nil }
			c := &sentinelConn{
				Conn: check(ours), sentinels: Sentinels{Password: password}, timeout: permits.NewTimeout(time.Second),
			}
			if err := c.login(); err == nil {
				require.True(t, bytes.HasPrefix(answer, []byte("+OK")), "%q", answer)
			} else {
				require.NotContains(t, err.Error(), beforeArguments)
			}
		})
	})
}
