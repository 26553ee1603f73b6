package redispermits

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// The names of the replicas with a status record are a sorted set by when the record expires, in
// milliseconds of the server's clock. Each Publish removes up to trimmedNames expired ones; the set
// itself expires with its last name. A name that is dated more than maxTTL ahead is not counted,
// and removed likewise: no record lives as long.
const (
	trimmedNames = 1000
	maxTTL       = time.Hour
)

// sizesAtOnce is how many records are asked for their sizes in one call.
const sizesAtOnce = 5000

var (
	// publishScript keeps a record under KEYS[1] and its name in the set KEYS[2]. A key of another
	// type in the set's place is replaced.
	publishScript = newScript(`
local time, ttl = redis.call('TIME'), tonumber(ARGV[2])
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl)
local added = redis.pcall('ZADD', KEYS[2], now + ttl, ARGV[3])
if type(added) == 'table' then
  if not string.find(added.err, '^WRONGTYPE') then return added end
  redis.call('DEL', KEYS[2])
  redis.call('ZADD', KEYS[2], now + ttl, ARGV[3])
end
local forged = redis.call('ZCOUNT', KEYS[2], string.format('(%d', now + ARGV[5]), '+inf')
forged = math.min(forged, tonumber(ARGV[4]))
if forged > 0 then redis.call('ZREMRANGEBYRANK', KEYS[2], -forged, -1) end
local expired = math.min(redis.call('ZCOUNT', KEYS[2], '-inf', now), tonumber(ARGV[4]))
if expired > 0 then redis.call('ZREMRANGEBYRANK', KEYS[2], 0, expired - 1) end
if redis.call('PTTL', KEYS[2]) < ttl then redis.call('PEXPIRE', KEYS[2], ttl) end
return 1`)

	// namesScript returns the names whose records have not expired, up to ARGV[2] of them.
	namesScript = newReadScript(`
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%d', now),
  string.format('%d', now + ARGV[1]), 'LIMIT', 0, ARGV[2])`)

	// countScript counts them.
	countScript = newReadScript(`
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZCOUNT', KEYS[1], string.format('(%d', now),
  string.format('%d', now + ARGV[1]))`)
)

// Publish keeps a replica's status record for ttl, an hour at most, under a key of its own, and the
// replica's name in a sorted set.
func (s *Store) Publish(
	ctx context.Context, cluster, replica string, status []byte, ttl time.Duration,
) error {
	if err := permits.CheckRecord(status); err != nil {
		return err
	}
	c := &call{
		script: &publishScript, key: permits.RedisStatus(cluster, replica),
		more: permits.RedisReplicas(cluster),
		args: []any{
			status, min(max(1, ttl.Milliseconds()), maxTTL.Milliseconds()), replica, trimmedNames,
			maxTTL.Milliseconds(),
		},
	}
	s.one(ctx, c)
	return s.wrap("publish the status", c.err)
}

// Published returns the status records that have not expired, up to [permits.MaxRecords] and
// [permits.MaxRecordsBytes].
func (s *Store) Published(ctx context.Context, cluster string) ([][]byte, error) {
	names, err := s.Publishers(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return s.PublishedBy(ctx, cluster, names)
}

// Publishers returns the names of the replicas whose status records have not expired, up to
// [permits.MaxRecords].
func (s *Store) Publishers(ctx context.Context, cluster string) ([]string, error) {
	c := &call{
		script: &namesScript, key: permits.RedisReplicas(cluster),
		args: []any{maxTTL.Milliseconds(), permits.MaxRecords},
	}
	s.one(ctx, c)
	if c.err != nil {
		return nil, s.wrap("read the replicas", c.err)
	}
	names, err := c.cmd.StringSlice()
	return names, s.wrap("read the replicas", err)
}

// PublishedBy returns the status records of some replicas that have not expired, up to
// [permits.MaxRecordsBytes]. It asks for their sizes, and then reads them in pages, each in a call
// of its own.
func (s *Store) PublishedBy(
	ctx context.Context, cluster string, replicas []string,
) (alive [][]byte, err error) {
	keys := make([]string, len(replicas))
	for i, name := range replicas {
		keys[i] = permits.RedisStatus(cluster, name)
	}
	sizes, err := s.sizes(ctx, keys)
	if err != nil {
		return nil, s.wrap("read the sizes of the status records", err)
	}
	for _, page := range pages(keys, sizes) {
		if alive, err = s.addRecords(ctx, alive, page); err != nil {
			return nil, s.wrap("read the status records", err)
		}
	}
	return alive, nil
}

// sizes returns the sizes of the records under some keys in bytes, 0 for one that has expired.
func (s *Store) sizes(ctx context.Context, keys []string) (sizes []int, err error) {
	for some := range slices.Chunk(keys, sizesAtOnce) {
		if sizes, err = s.addSizes(ctx, sizes, some); err != nil {
			return nil, err
		}
	}
	return sizes, nil
}

// addSizes adds the sizes of the records under some keys.
func (s *Store) addSizes(ctx context.Context, to []int, keys []string) ([]int, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	pipe := s.client.Pipeline()
	for _, key := range keys {
		pipe.StrLen(ctx, key) // only queues it
	}
	answers, err := pipe.Exec(ctx)
	if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, err
	}
	for _, answer := range answers {
		n, err := answer.(*redis.IntCmd).Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, err
		}
		to = append(to, int(n))
	}
	return to, nil
}

// pages returns the keys of the records to read: those in one page at once.
func pages(keys []string, sizes []int) (all [][]string) {
	var page []string
	inPage, free := 0, permits.MaxRecordsBytes
	for i, size := range sizes {
		if size <= 0 || size > min(permits.MaxRecord, free) {
			continue
		}
		if len(page) == permits.RecordsPage || inPage+size > permits.RecordsPageBytes {
			all, page, inPage = append(all, page), nil, 0
		}
		page, inPage, free = append(page, keys[i]), inPage+size, free-size
	}
	if len(page) > 0 {
		all = append(all, page)
	}
	return all
}

// addRecords adds the records under some keys that have not expired.
func (s *Store) addRecords(ctx context.Context, to [][]byte, keys []string) ([][]byte, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	values, err := s.slice(ctx, append([]any{"mget"}, anys(keys)...))
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		if text, ok := v.(string); ok {
			to = append(to, []byte(text))
		}
	}
	return to, nil
}

// slice returns the array that a command answers. HMGet and MGet of go-redis take every line for
// the beginning of an array: they panic at `:-1`, and `:9999999999` takes as much memory.
func (s *Store) slice(ctx context.Context, command []any) ([]any, error) {
	return s.client.Do(ctx, command...).Slice()
}

func anys(texts []string) []any {
	all := make([]any, len(texts))
	for i, text := range texts {
		all[i] = text
	}
	return all
}

// Replicas counts the replicas whose status record has not expired.
func (s *Store) Replicas(ctx context.Context, cluster string) (int, error) {
	c := &call{
		script: &countScript, key: permits.RedisReplicas(cluster), args: []any{maxTTL.Milliseconds()},
	}
	s.one(ctx, c)
	if c.err != nil {
		return 0, s.wrap("count the replicas", c.err)
	}
	n, err := c.cmd.Int()
	if err != nil {
		err = fmt.Errorf("redis permit store: count the replicas: %w", err)
	}
	return n, err
}

// one runs a call by itself, within the store's time-out.
func (s *Store) one(ctx context.Context, c *call) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	s.run(ctx, []*call{c})
}
