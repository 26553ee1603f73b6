package redispermits

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Bounds of a reply. go-redis makes room for as much as a reply says that it has, and panics where
// there is not so much memory.
const (
	maxBytes  = 64 << 20 // of a value
	maxLine   = 64 << 10 // of a line: an error, for example
	maxValues = 1 << 20  // of a reply: status records, for example
)

// checked returns a function that makes connections secure as secure does, and then fails at a
// reply that is out of bounds.
func checked(secure secureFunc) secureFunc {
	return func(ctx context.Context, conn net.Conn, addr string) (net.Conn, error) {
		conn, err := secure(ctx, conn, addr)
		if err != nil {
			return nil, err
		}
		return check(conn), nil
	}
}

// A checkedConn is a connection that fails at a reply that is out of bounds.
type checkedConn struct {
	net.Conn
	replies replies
}

// A checkedSocket is one whose socket go-redis looks at, to see whether the server has hung up.
type checkedSocket struct {
	*checkedConn
	syscall.Conn
}

func check(conn net.Conn) net.Conn {
	c := &checkedConn{Conn: conn}
	if socket, ok := conn.(syscall.Conn); ok {
		return checkedSocket{c, socket}
	}
	return c
}

// Read implements net.Conn.
func (c *checkedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if fault := c.replies.read(p[:n]); fault != nil {
		return 0, fault
	}
	return n, err
}

// replies follows the replies on a connection, in the protocols RESP2 and RESP3.
type replies struct {
	skip   int    // bytes of a value that are still to come
	line   []byte // the beginning of a line that has not ended
	length int    // of that line
	due    int    // values of the present reply that are still to come
	values int    // that it has in all
}

// read returns why the replies are out of bounds, with these bytes; nil if they are not.
func (r *replies) read(p []byte) error {
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			r.skip, p = r.skip-n, p[n:]
			continue
		}
		part, rest, ended := bytes.Cut(p, []byte{'\n'})
		p = rest
		if r.length += len(part); r.length > maxLine {
			return fmt.Errorf("invalid reply: a line of more than %d bytes", maxLine)
		}
		r.line = append(r.line, part[:min(len(part), 32-len(r.line))]...)
		if ended {
			if err := r.value(bytes.TrimSuffix(r.line, []byte{'\r'})); err != nil {
				return err
			}
			r.line, r.length = r.line[:0], 0
		}
	}
	return nil
}

// value takes in the line that begins a value.
func (r *replies) value(line []byte) error {
	if len(line) == 0 {
		return nil // go-redis reports it
	}
	n, err := strconv.Atoi(string(line[1:]))
	if r.due == 0 {
		r.due, r.values = 1, 0
	}
	r.due--
	switch line[0] {
	case '$', '=', '!':
		if err != nil || n > maxBytes {
			return fmt.Errorf("invalid reply: a value of %.20q bytes: want at most %d", line[1:], maxBytes)
		}
		if n >= 0 { // -1 is no value
			r.skip = n + len("\r\n")
		}
	case '*', '~', '>', '%', '|':
		n = max(0, n)
		if err != nil || n > maxValues || r.values+n > maxValues {
			return fmt.Errorf("invalid reply: %.20q values: want at most %d", line[1:], maxValues)
		}
		if line[0] == '%' || line[0] == '|' {
			n *= 2
		}
		if line[0] == '|' { // is about the value that follows
			n++
		}
		r.due, r.values = r.due+n, r.values+n
	}
	return nil
}
