package redispermits

import (
	"context"
	_ "embed"
	"errors"

	"github.com/redis/go-redis/v9"
)

//go:embed allocate.lua
var allocateLua string

var (
	allocateScript = newScript(allocateLua)

	// readScript returns a value and the clock. It is one script, so that in a Cluster both are
	// the same server's.
	readScript = newReadScript(getLua + `
local time = redis.call('TIME')
return {time[1], time[2], value}`)

	// swapScript replaces a value that is still the one expected; "" is no value. If it is another
	// one, it returns what readScript returns.
	swapScript = newScript(getLua + `
if (value or '') ~= ARGV[1] then
  local time = redis.call('TIME')
  return {time[1], time[2], value}
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1`)

	// stateScript returns the fields of a limit's hash and the clock.
	stateScript = newReadScript(`
local time, hash = redis.call('TIME'), redis.call('HMGET', KEYS[1], 'l', 'r', 'q', 'b', 'o')
return {time[1], time[2], hash[1], hash[2], hash[3], hash[4], hash[5]}`)
)

// getLua gets a value. That of a key of another type is a text that is no record: what reads it
// reports the damage, and what replaces it heals the key.
const getLua = `
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not string.find(value.err, '^WRONGTYPE') then return value end
  value = 'WRONGTYPE: a key of another type'
end`

// A script runs on a server, which knows it by its hash once it has been sent its text.
type script struct {
	hash, text string
	reads      bool // it writes nothing, and so needs only the right to read its keys
}

func newScript(text string) script { return script{redis.NewScript(text).Hash(), text, false} }

func newReadScript(text string) script { return script{redis.NewScript(text).Hash(), text, true} }

// A call is one run of a script on one or two keys.
type call struct {
	script *script
	key    string
	more   string // a second key with the same hash tag; "" = none
	args   []any
	cmd    *redis.Cmd // its answer, if err is nil
	err    error
}

// answered reports whether a server has answered the call, even with an error.
func (c *call) answered() bool {
	_, refused := errors.AsType[redis.Error](c.err)
	return c.err == nil || refused
}

// run makes the calls in one pipeline. A server that does not know a script has not run it, and
// is sent its text in a second one: once, or in a Cluster, where each server needs it, each time.
func (s *Store) run(ctx context.Context, calls []*call) {
	s.send(ctx, calls, func(*script) bool { return false })
	var unknown []*call
	for _, c := range calls {
		if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	sent := map[*script]bool{}
	s.send(ctx, unknown, func(script *script) bool {
		defer func() { sent[script] = true }()
		return !sent[script] || s.Sharded()
	})
}

// send makes the calls in one pipeline; whole says which need the text of their script.
func (s *Store) send(ctx context.Context, calls []*call, whole func(*script) bool) {
	if len(calls) == 0 {
		return
	}
	pipe := s.client.Pipeline()
	for _, c := range calls {
		command, script := "evalsha", c.script.hash
		if whole(c.script) {
			command, script = "eval", c.script.text
		}
		if c.script.reads {
			command += "_ro"
		}
		line := []any{command, script, 1, c.key}
		if c.more != "" {
			line = []any{command, script, 2, c.key, c.more}
		}
		c.cmd = redis.NewCmd(ctx, append(line, c.args...)...)
		_ = pipe.Process(ctx, once{c.cmd}) // only queues it
	}
	_, sent := pipe.Exec(ctx)
	for _, c := range calls {
		if c.err = c.cmd.Err(); c.err == nil && c.cmd.Val() == nil {
			c.err = sent // it was not sent: a wrong password, for example
		}
	}
}

// once is a command that go-redis does not send again when its connection breaks, as it would in
// a Cluster.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }
