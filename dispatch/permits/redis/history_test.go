package redispermits_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestHistories: under faults, the script in a real Redis is linearizable: no allocation is made
// twice, lost, or made on an old state.
func TestHistories(t *testing.T) {
	permitstest.Histories(t, permitstest.Between(t, 0, 12), func(t *testing.T) permitstest.Recorded {
		const clients = 5
		dir := t.TempDir()
		// The append-only file has each change before its reply is sent.
		server := services.RedisServer(t, "--appendonly", "yes", "--appendfsync", "no", "--dir", dir)
		admin := redis.NewClient(&redis.Options{Addr: server.Addr})
		t.Cleanup(func() { _ = admin.Close() }) // the server may be gone
		b := permitstest.Recorded{Redis: true}
		var proxies []*services.Proxy
		for range clients {
			proxy := services.NewProxy(t, server.Addr)
			store := redispermits.Open(redis.UniversalOptions{Addrs: []string{proxy.Addr}}, 50*time.Millisecond)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			b.Stores, proxies = append(b.Stores, dispatch.PermitStore(store)), append(proxies, proxy)
		}
		log := aof{t: t, dir: filepath.Join(dir, "appendonlydir")}
		b.Faults = permitstest.ProxyFaults(proxies)
		maps.Copy(b.Faults, map[string]func(time.Duration){
			"server frozen": func(d time.Duration) { server.Freeze(); time.Sleep(d); server.Thaw() },
			"server killed": func(d time.Duration) { server.Kill(); time.Sleep(d); server.Start() },
			"server killed and emptied": func(d time.Duration) {
				server.Kill()
				log.replace("", "FLUSHALL")
				time.Sleep(d)
				server.Start()
			},
			"server killed, back with an old snapshot": func(d time.Duration) {
				snapshot := filepath.Join(t.TempDir(), "snapshot")
				server.Freeze() // between two commands
				require.NoError(t, os.CopyFS(snapshot, os.DirFS(log.dir)))
				server.Thaw()
				time.Sleep(d)
				server.Kill()
				log.replace(snapshot, "RESTORE")
				server.Start()
			},
			"clients and scripts lost": func(time.Duration) {
				require.NoError(t, admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err())
				require.NoError(t, admin.ScriptFlush(t.Context()).Err())
			},
			"emptied": func(time.Duration) { require.NoError(t, admin.FlushAll(t.Context()).Err()) },
		})
		b.Log = func(keys []string) [][]permitstest.Version {
			all := log.commands()
			logs := make([][]permitstest.Version, len(keys))
			for i, key := range keys {
				logs[i] = versions(t, all, key)
			}
			return logs
		}
		return b
	})
}

// An aof is a Redis's append-only file, which may be replaced while the Redis does not run.
type aof struct {
	t     *testing.T
	dir   string
	gone  [][]string // commands of files that were replaced
	again int        // how many commands of the file are among these
}

// commands are all that Redis has carried out. A command of ours says where its file was replaced:
// FLUSHALL, or RESTORE and by how many of the commands before.
func (a *aof) commands() [][]string {
	return slices.Concat(a.gone, commands(a.t, a.dir)[a.again:])
}

// replace replaces the file by a copy of what it was, or removes it if there is none.
func (a *aof) replace(by, command string) {
	before := len(a.gone) - a.again // commands that a copy does not have
	a.gone, a.again = a.commands(), 0
	require.NoError(a.t, os.RemoveAll(a.dir))
	if by != "" {
		require.NoError(a.t, os.Rename(by, a.dir))
		a.again = len(commands(a.t, a.dir))
	}
	a.gone = append(a.gone, []string{command, strconv.Itoa(before + a.again)})
}

// versions are those of a limit, by the commands that Redis has carried out.
func versions(t *testing.T, log [][]string, key string) (all []permitstest.Version) {
	after := []int{0} // versions after each command, by the number of commands
	for _, args := range log {
		switch {
		case args[0] == "FLUSHALL":
			all = append(all, permitstest.Version{})
		case args[0] == "RESTORE":
			n, err := strconv.Atoi(args[1])
			require.NoError(t, err)
			all = append(all, permitstest.Restored(after[n]))
		case args[0] == "HSET" && args[1] == key && args[2] == "l":
			state, err := redispermits.ParseState(args[3])
			require.NoError(t, err)
			all = append(all, permitstest.VersionOf(state))
		}
		after = append(after, len(all))
	}
	return all
}

// commands are those of the append-only file in dir. The last one may be half written.
func commands(t *testing.T, dir string) (all [][]string) {
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".aof") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for r := bufio.NewReader(bytes.NewReader(text)); ; {
			var n int
			if _, err := fmt.Fscanf(r, "*%d\r\n", &n); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			args := make([]string, n)
			for i := range args {
				var size int
				if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
					return nil
				}
				arg := make([]byte, size+len("\r\n"))
				if _, err := io.ReadFull(r, arg); err != nil {
					return nil
				}
				args[i] = string(arg[:size])
			}
			args[0] = strings.ToUpper(args[0])
			all = append(all, args)
		}
	}))
	return all
}
