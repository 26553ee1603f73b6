package redispermits

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// Sentinels says how to log in to Sentinels, which may differ from how to log in to the servers
// that they watch.
type Sentinels struct {
	Username string                      // may be "" with a password
	Password func() (string, error)      // asked at each login; nil: no login
	TLS      func() (*tls.Config, error) // asked at each connection; nil: no TLS
}

// go-redis dials Sentinels and their master by one function, and gives it only an address; it
// knows one TLS configuration for both, and one permanent password of Sentinels. So that function
// makes a connection of a Sentinel. masters makes those of the master from it, before they are
// used.

// A sentinelConn is a connection to a Sentinel, which logs in when it is first written to.
type sentinelConn struct {
	net.Conn           // over TLS if the Sentinels use it
	plain     net.Conn // the same without TLS
	addr      string
	deadline  time.Time // of the handshake, if it is the master's
	sentinels Sentinels
	timeout   *permits.Timeout
	loggedIn  bool
}

// dial returns a function that dials a Sentinel.
func (s Sentinels) dial(dial dialFunc, timeout *permits.Timeout) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		deadline := time.Now().Add(timeout.Current())
		plain, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn := plain
		if s.TLS != nil {
			cfg, err := s.TLS()
			if err != nil {
				return nil, errors.Join(err, plain.Close())
			}
			conn = tls.Client(plain, named(cfg, addr)) // the handshake comes with the first write
		}
		return &sentinelConn{check(conn), plain, addr, deadline, s, timeout, s.Password == nil}, nil
	}
}

// Write implements net.Conn.
func (c *sentinelConn) Write(p []byte) (int, error) {
	if !c.loggedIn {
		if err := c.login(); err != nil {
			return 0, fmt.Errorf("log in to the Sentinel %s: %w", c.addr, err)
		}
		c.loggedIn = true
	}
	return c.Conn.Write(p)
}

// login sends AUTH and reads the answer to it.
func (c *sentinelConn) login() error {
	password, err := c.sentinels.Password()
	if err != nil {
		return err
	}
	args := []string{"AUTH", c.sentinels.Username, password}
	if c.sentinels.Username == "" {
		args = []string{"AUTH", password}
	}
	var text strings.Builder
	text.WriteString("*" + strconv.Itoa(len(args)) + "\r\n")
	for _, arg := range args {
		text.WriteString("$" + strconv.Itoa(len(arg)) + "\r\n" + arg + "\r\n")
	}
	if _, err := c.Conn.Write([]byte(text.String())); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(c.timeout.Current())); err != nil {
		return err
	}
	defer func() { _ = c.SetReadDeadline(time.Time{}) }() // go-redis sets one for each command
	var answer []byte
	for one := make([]byte, 1); !bytes.HasSuffix(answer, []byte("\r\n")) && len(answer) < 512; {
		if _, err := c.Read(one); err != nil { // byte by byte: what follows is not for this login
			return err
		}
		answer = append(answer, one...)
	}
	if !bytes.HasPrefix(answer, []byte("+OK")) {
		answer, _, _ = bytes.Cut(answer, []byte(beforeArguments))
		return fmt.Errorf("%q", bytes.TrimSpace(answer))
	}
	return nil
}

// masters is a redis.Hook of a client behind Sentinels. It makes connections of the master from
// those of Sentinels.
type masters struct {
	secure secureFunc
}

// DialHook implements redis.Hook.
func (m masters) DialHook(next redis.DialHook) redis.DialHook {
	return redis.DialHook(quiet(func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if s, ok := conn.(*sentinelConn); ok {
			ctx, cancel := context.WithDeadline(ctx, s.deadline)
			defer cancel()
			return m.secure(ctx, s.plain, s.addr)
		}
		return conn, err
	}))
}

// ProcessHook implements redis.Hook.
func (masters) ProcessHook(redis.ProcessHook) redis.ProcessHook { return nil }

// ProcessPipelineHook implements redis.Hook.
func (masters) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook { return nil }
