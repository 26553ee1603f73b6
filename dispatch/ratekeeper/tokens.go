package ratekeeper

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// minToken is the shortest token, in bytes.
const minToken = 16

// reread is how often the file of the tokens is read again, at most.
const reread = time.Second

// Tokens are the tokens with which backends report, each for one backend. They are in a file with a
// line `BACKEND: TOKEN` for each; a backend may have several, to change one. A name and a token may
// contain colons: the first one with a space after it is between them. Empty lines and those that
// start with # are ignored. The file is read again while it is used, once a second at most. Any
// number of goroutines may use Tokens at once.
type Tokens struct {
	name string
	key  []byte // of the hashes, so that timing reveals nothing about a token

	mu    sync.Mutex // guards the fields below
	log   *slog.Logger
	read  time.Time
	text  []byte
	byMAC map[[sha256.Size]byte]holder
}

// A holder is a backend and its token's hash, which is compared in constant time.
type holder struct {
	mac     [sha256.Size]byte
	backend string
}

// OpenTokens reads a file of tokens. If it cannot be read later, its last content stays in force,
// and log, unless it is nil, gets the error once.
func OpenTokens(name string, log *slog.Logger) (*Tokens, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Tokens{name: name, key: make([]byte, sha256.Size), log: log}
	_, _ = rand.Read(t.key) // never fails
	if err := t.load(time.Now()); err != nil {
		return nil, err
	}
	return t, nil
}

// Backend returns the backend that has a token; see [Ratekeeper.Handler].
func (t *Tokens) Backend(token string) (backend string, ok bool) {
	mac := t.mac(token)
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.read) >= reread {
		text := t.text
		if err := t.load(now); err != nil && !bytes.Equal(text, t.text) {
			t.log.Error("the tokens of backends cannot be read; the last ones stay in force",
				"error", err)
		}
	}
	h := t.byMAC[mac]
	return h.backend, subtle.ConstantTimeCompare(h.mac[:], mac[:]) == 1
}

func (t *Tokens) mac(token string) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, t.key)
	_, _ = h.Write([]byte(token)) // never fails
	h.Sum(sum[:0])
	return sum
}

// load reads the file. It keeps the tokens if there is an error.
func (t *Tokens) load(now time.Time) error {
	t.read = now
	text, err := os.ReadFile(t.name)
	if err != nil {
		text = nil // so that the error is reported once
	} else if t.text != nil && bytes.Equal(text, t.text) {
		return nil
	}
	t.text = append([]byte{}, text...)
	if err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	all := map[[sha256.Size]byte]holder{}
	var errs []error
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		backend, token, found := strings.Cut(line, ": ")
		h := holder{backend: strings.TrimSpace(backend)}
		token = strings.TrimSpace(token)
		h.mac = t.mac(token)
		_, taken := all[h.mac]
		bad := func(reason string) { // the line itself may be a token
			errs = append(errs, fmt.Errorf("tokens: %s, line %d: %s", t.name, i+1, reason))
		}
		switch {
		case !found || h.backend == "" || len(h.backend) > quota.MaxName:
			bad(fmt.Sprintf("invalid name: want BACKEND: TOKEN, with a name of 1 to %d bytes",
				quota.MaxName))
		case len(token) < minToken || strings.ContainsAny(token, " \t"):
			bad(fmt.Sprintf("invalid token: want %d characters or more, without a space, after the "+
				"first colon and space", minToken))
		case taken:
			bad("the token is that of another line: want one that no other backend has")
		}
		all[h.mac] = h
	}
	if len(all) == 0 {
		errs = append(errs, fmt.Errorf("tokens: %s: no lines: want BACKEND: TOKEN", t.name))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	t.byMAC = all
	return nil
}
