package redispermits

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// rowsScript replaces fields of the hash KEYS[2] if the value under KEYS[1] is still ARGV[1]. Names
// and texts follow; "" removes a field. A key of another type is replaced.
var rowsScript = newScript(getLua + `
if (value or '') ~= ARGV[1] then return 0 end
local hash = redis.pcall('HDEL', KEYS[2], '')
if type(hash) == 'table' then
  if not string.find(hash.err, '^WRONGTYPE') then return hash end
  redis.call('DEL', KEYS[2])
end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[i])
  else
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1`)

// SetRows replaces fields of the hash that belongs to the value under key.
func (s *Store) SetRows(
	ctx context.Context, key string, head []byte, ttl time.Duration, rows map[string][]byte,
) (done bool, err error) {
	c := &call{
		script: &rowsScript, key: key, more: permits.RowsKey(key),
		args: []any{head, max(1, ttl.Milliseconds())},
	}
	for name, text := range rows {
		c.args = append(c.args, name, text)
	}
	s.one(ctx, c)
	if c.err != nil {
		return false, s.wrap("set rows of "+key, c.err)
	}
	n, err := c.cmd.Int()
	return n == 1, s.wrap("set rows of "+key, err)
}

// Rows returns fields of the hash that belongs to the value under key.
func (s *Store) Rows(ctx context.Context, key string, names []string) ([][]byte, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	values, err := s.slice(ctx, append([]any{"hmget", permits.RowsKey(key)}, anys(names)...))
	if err != nil {
		return nil, s.wrap("read the rows of "+key, err)
	}
	if len(values) != len(names) {
		return nil, fmt.Errorf("redis permit store: read the rows of %s: invalid answer of %d values: want %d",
			key, len(values), len(names))
	}
	rows := make([][]byte, len(values))
	for i, v := range values {
		if text, ok := v.(string); ok {
			rows[i] = []byte(text)
		}
	}
	return rows, nil
}

// RowNames returns the names of the fields. A key of another type, which SetRows replaces, has
// none.
func (s *Store) RowNames(ctx context.Context, key string) ([]string, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	names, err := s.client.HKeys(ctx, permits.RowsKey(key)).Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil
	}
	return names, s.wrap("read the names of the rows of "+key, err)
}
