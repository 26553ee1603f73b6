// Package secrets reads passwords, certificates and keys from files each time they are used, so
// that a connection uses what the files hold when it is made.
package secrets

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
)

// Text returns a function that returns a password that does not change.
func Text(password string) func() (string, error) {
	return func() (string, error) { return password, nil }
}

// File returns a function that returns the password that a file holds, without the white space
// around it.
func File(name string) func() (string, error) {
	return func() (string, error) {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		password := strings.TrimSpace(string(text))
		if password == "" {
			return "", fmt.Errorf("%s: is empty: want a password", name)
		}
		return password, nil
	}
}

// Remote reports whether a host may be another machine: what is sent there, others may read.
func Remote(host string) bool {
	ip := net.ParseIP(host)
	return host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// wide are the rights of a mode that a file with a secret must not have: all of others, and of its
// group to write.
const wide = 0o027

// Exposed returns an error if others may read or write a file with a secret, or its group may
// write it. It returns nil for a file that cannot be found: opening it reports why.
func Exposed(name string) error {
	info, err := os.Stat(name)
	if err != nil || runtime.GOOS == "windows" { // where modes say nothing
		return nil
	}
	if got := info.Mode().Perm(); got&wide != 0 {
		return &ExposedError{name, got}
	}
	return nil
}

// An ExposedError reports a file with a secret that too many users may read or write.
type ExposedError struct {
	Name string
	Mode os.FileMode
}

func (e *ExposedError) Error() string {
	return fmt.Sprintf("%s: mode %04o lets others read or change a secret: chmod 640 %[1]s, or less",
		e.Name, e.Mode)
}
