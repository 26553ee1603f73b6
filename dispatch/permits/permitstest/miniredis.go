package permitstest

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"
)

//go:embed struct.lua
var structLua string

// AddStruct gives the scripts of a miniredis the library struct, which those of Redis have, and
// lets those that only read call TIME. One that has not been started is started in memory: it is
// reached by Dial.
func AddStruct(t testing.TB, m *miniredis.Miniredis) {
	if m.Server() == nil {
		conn, err := m.Dial()
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		t.Cleanup(m.Close)
	}
	var mu sync.Mutex
	hashes := map[string]string{} // from a client's hash of a script to miniredis's
	m.Server().SetPreHook(func(p *server.Peer, command string, args ...string) bool {
		if writes, reads := strings.CutSuffix(command, "_RO"); reads {
			m.Server().Dispatch(p, append([]string{writes}, args...))
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		switch command {
		case "EVAL":
			text := structLua + args[0]
			hashes[hash(args[0])] = hash(text)
			args[0] = text // is what the command is run with
		case "EVALSHA":
			if known, ok := hashes[args[0]]; ok {
				args[0] = known
			}
		}
		return false
	})
}

func hash(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}
