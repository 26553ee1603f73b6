package redispermits

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

//go:embed allocate.lua
var allocateLua string

var (
	allocateScript = newScript(allocateLua)

	// readScript returns a value and the clock. It is one script, so that in a Cluster both are
	// the same server's.
	readScript = newScript(`
local time = redis.call('TIME')
return {time[1], time[2], redis.call('GET', KEYS[1])}`)

	// swapScript replaces a value that is still the one expected; "" is no value.
	swapScript = newScript(`
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1`)

	// stateScript returns the fields of a limit's hash and the clock.
	stateScript = newScript(`
local time, hash = redis.call('TIME'), redis.call('HMGET', KEYS[1], 'l', 'r', 'q', 'b')
return {time[1], time[2], hash[1], hash[2], hash[3], hash[4]}`)
)

// A script runs on a server, which knows it by its hash once it has been sent its text.
type script struct{ hash, text string }

func newScript(text string) script { return script{redis.NewScript(text).Hash(), text} }

// A call is one run of a script on one key.
type call struct {
	script *script
	key    string
	args   []any
	cmd    *redis.Cmd // its answer, if err is nil
	err    error
}

// run makes the calls in one pipeline. A server that does not know a script has not run it, and
// is sent its text in a second one.
func (s *Store) run(ctx context.Context, calls []*call) {
	s.send(ctx, "evalsha", calls)
	var unknown []*call
	for _, c := range calls {
		if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	s.send(ctx, "eval", unknown)
}

func (s *Store) send(ctx context.Context, command string, calls []*call) {
	if len(calls) == 0 {
		return
	}
	pipe := s.client.Pipeline()
	for _, c := range calls {
		script := c.script.hash
		if command == "eval" {
			script = c.script.text
		}
		c.cmd = redis.NewCmd(ctx, append([]any{command, script, 1, c.key}, c.args...)...)
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
