// Package redispermits keeps the schedules of all processes in Redis: a single server, Sentinel or Cluster.
// An allocation is one script call, whose cost does not depend on how many replicas share the limit.
//
// A Limiter logs once that its permit store is unavailable. go-redis, which would write each failed dial to standard error, sees none of
// them. Behind Sentinels it still writes which master it has found, and each Sentinel that it cannot reach; a program that wants
// none of that calls redis.SetLogger.
package redispermits

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// DefaultTimeout bounds each call of the permit store.
const DefaultTimeout = 200 * time.Millisecond

//go:embed allocate.lua
var allocateLua string

var allocateScript = newScript(allocateLua)

// A Store is the Redis permit store. Any number of goroutines may use it at once.
type Store struct {
	client  redis.UniversalClient
	timeout time.Duration
	tls     bool
}

// Open returns a permit store on the servers of o. What o says of time-outs and retries is replaced by what a permit store
// needs: each call ends within timeout (0 = [DefaultTimeout]), and nothing is repeated. The
// connection is made when it is needed, so that a process can start while Redis is away.
func Open(o redis.UniversalOptions, timeout time.Duration) *Store {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	o.ContextTimeoutEnabled = true
	o.MaxRetries = -1
	o.MaxRedirects = 3
	o.PoolSize = 1000
	o.DialerRetries = 1
	o.MinRetryBackoff, o.MaxRetryBackoff = -1, -1 // whom a Cluster sends on goes at once
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
	if o.Dialer == nil {
		o.Dialer = redis.NewDialer(&redis.Options{DialTimeout: timeout, TLSConfig: o.TLSConfig})
	}
	o.Dialer = quiet(o.Dialer)
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &Store{redis.NewUniversalClient(&o), timeout, o.TLSConfig != nil}
}

// Timeout is how long a call takes at most.
func (l *Store) Timeout() time.Duration { return l.timeout }

// Close closes the connections.
func (l *Store) Close() error {
	if err := l.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("redis permit store: close: %w", err)
	}
	return nil
}

// Do runs all allocations and reads all records in one pipeline, and replaces the records in a second one. A record that
// another process replaced in between is read again.
func (l *Store) Do(ctx context.Context, requests []*permits.Request) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	calls := make([]*call, 0, len(requests))
	for _, r := range requests {
		if r.Allocate != nil {
			calls = append(calls, &call{script: &allocateScript, key: r.Key, args: arguments(&r.Allocate.Request)})
		}
	}
	records := permits.Records(requests)
	for _, r := range records {
		calls = append(calls, &call{script: &readScript, key: r.Key})
	}
	l.run(ctx, calls)
	for _, r := range requests {
		if r.Allocate != nil {
			r.Allocate.Reply, r.Err = l.reply(calls[0])
			calls = calls[1:]
		}
	}
	for attempt := 0; ; attempt++ {
		if records = l.swap(ctx, records, calls); len(records) == 0 {
			return
		}
		if err := permits.Backoff(ctx, attempt); err != nil {
			for _, r := range records {
				r.Fail(l.wrap("update "+r.Key, err))
			}
			return
		}
		calls = calls[:0]
		for _, r := range records {
			calls = append(calls, &call{script: &readScript, key: r.Key})
		}
		l.run(ctx, calls)
	}
}

// swap replaces the records, of which reads are the answers of readScript, and returns those that have changed since.
func (l *Store) swap(ctx context.Context, records []*permits.Record, reads []*call) (lost []*permits.Record) {
	var swaps []*call
	var swapped []*permits.Record
	for i, r := range records {
		old, now, err := l.value(reads[i])
		if err != nil {
			r.Fail(err)
		} else if next := r.Apply(old, now); next != nil {
			swaps, swapped = append(swaps, swapCall(r.Key, old, next, r.TTL)), append(swapped, r)
		}
	}
	l.run(ctx, swaps)
	for i, r := range swapped {
		if done, err := swaps[i].cmd.Int(); swaps[i].err != nil || err != nil {
			r.Fail(l.wrap("update "+r.Key, cmp.Or(swaps[i].err, err)))
		} else if done == 0 {
			lost = append(lost, r)
		}
	}
	return lost
}

// A script runs on a server, which knows it by its hash once it has been sent its text.
type script struct{ hash, text string }

func newScript(text string) script { return script{redis.NewScript(text).Hash(), text} }

// A call is one run of a script on one key.
type call struct {
	script *script
	key    string
	args   []any
	cmd    *redis.Cmd // its answer
	err    error
}

// run makes the calls in one pipeline. A server that does not know a script has not run it either, and is sent its text.
func (l *Store) run(ctx context.Context, calls []*call) {
	l.send(ctx, "evalsha", calls)
	var unknown []*call
	for _, c := range calls {
		if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	l.send(ctx, "eval", unknown)
}

func (l *Store) send(ctx context.Context, command string, calls []*call) {
	if len(calls) == 0 {
		return
	}
	pipe := l.client.Pipeline()
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
		if c.err = c.cmd.Err(); c.err == nil && c.cmd.Val() == nil { // never sent: a wrong password, say
			c.err = sent
		}
	}
}

// once is a command that is not sent again when its connection breaks, as a Cluster's client does without being asked.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }

// arguments are ARGV of allocate.lua.
func arguments(r *schedule.Request) []any {
	c, ramp := &r.Carry, &r.Ramp
	args := []any{r.Subscription, r.Identity, encode(
		r.Weight, r.Reserved, r.Demand, r.Want, r.Returned, r.Held, r.RTT, r.Round,
		r.Burst, r.Rate, float64(r.Rev), r.NotAfter, float64(r.Nonce),
		float64(c.Inc), float64(c.Seq), float64(c.Epoch), c.Eff, c.Fraction, c.Round,
		flag(r.Strict), r.MaxReserved,
		ramp.From, ramp.Over, ramp.TTL, flag(ramp.Relaxed),
		r.Low, r.High, c.Shifts,
	), r.Waiter}
	if rule := &r.Rule; rule.Mode != busy.None {
		args = append(args, encode(
			float64(rule.Mode), rule.MinRate, rule.Tolerance, rule.RecoverRate, rule.RecoverValue,
			r.Answers.OK, r.Answers.Busy, r.Answers.RetryAfter,
		))
	}
	return args
}

func flag(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// encode writes numbers as the script reads them: doubles of eight bytes, least first.
func encode(numbers ...float64) []byte {
	text := make([]byte, 0, 8*len(numbers))
	for _, x := range numbers {
		text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x))
	}
	return text
}

// numbers are such doubles, to be taken one by one.
type numbers string

func (n *numbers) next() float64 {
	x := math.Float64frombits(binary.LittleEndian.Uint64([]byte((*n)[:8])))
	*n = (*n)[8:]
	return x
}

func (n *numbers) int() int64 { return int64(n.next()) }

// reply is what a call of allocateScript returned.
func (l *Store) reply(c *call) (schedule.Reply, error) {
	if c.err != nil {
		return schedule.Reply{}, l.wrap("allocate", c.err)
	}
	text, err := c.cmd.Text()
	if err != nil {
		return schedule.Reply{}, l.wrap("allocate", err)
	}
	return parseReply(text)
}

func parseReply(text string) (r schedule.Reply, err error) {
	n := numbers(text)
	if len(text) != 16 && len(text) != 128 {
		return r, fmt.Errorf("redis permit store: answer %q has %d bytes", text[:min(len(text), 100)], len(text))
	}
	r.Late = n.next() == 1
	r.Now = n.next()
	if len(n) > 0 {
		r.N, r.Start, r.Share, r.Rate, r.Gap = n.next(), n.next(), n.next(), n.next(), n.next()
		r.Carry = schedule.Carry{Inc: n.int(), Seq: n.int(), Epoch: n.int(), Eff: n.next(), Fraction: n.next(), Round: n.next()}
		r.Ahead, r.Since, r.Carry.Shifts = n.next(), n.next(), n.next()
	}
	return r, nil
}

// readScript returns a value and the clock. It is one script, so that in a Cluster both are the same server's.
var readScript = newScript(`
local time = redis.call('TIME')
return {time[1], time[2], redis.call('GET', KEYS[1])}`)

// swapScript replaces a value that is still the one expected; "" is none.
var swapScript = newScript(`
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1`)

func swapCall(key string, old, text []byte, ttl time.Duration) *call {
	return &call{script: &swapScript, key: key, args: []any{old, text, max(1, ttl.Milliseconds())}}
}

// Update compares and swaps the value under key.
func (l *Store) Update(ctx context.Context, key string, ttl time.Duration, f func([]byte, float64) []byte) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		old, now, err := l.read(ctx, key)
		if err != nil {
			return err
		}
		swap := swapCall(key, old, f(old, now), ttl)
		l.run(ctx, []*call{swap})
		if swap.err != nil {
			return l.wrap("update "+key, swap.err)
		}
		if done, err := swap.cmd.Int(); err != nil || done == 1 {
			return l.wrap("update "+key, err)
		}
		if err := permits.Backoff(ctx, attempt); err != nil {
			return l.wrap("update "+key, err)
		}
	}
}

// Value returns the value that Update keeps under key.
func (l *Store) Value(ctx context.Context, key string) ([]byte, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.read(ctx, key)
}

// read returns the value under key, nil if there is none, and the server's clock.
func (l *Store) read(ctx context.Context, key string) ([]byte, float64, error) {
	c := &call{script: &readScript, key: key}
	l.run(ctx, []*call{c})
	return l.value(c)
}

// value is what a call of readScript returned.
func (l *Store) value(c *call) (value []byte, now float64, err error) {
	fields, now, err := l.fields(c)
	if err != nil {
		return nil, 0, err
	}
	if text, _ := fields[0].(string); text != "" {
		value = []byte(text)
	}
	return value, now, nil
}

// fields is what a script returned that begins with the server's clock, and that clock in seconds.
func (l *Store) fields(c *call) (fields []any, now float64, err error) {
	if c.err != nil {
		return nil, 0, l.wrap("read "+c.key, c.err)
	}
	fields, err = c.cmd.Slice()
	if err != nil {
		return nil, 0, l.wrap("read "+c.key, err)
	}
	clock := make([]float64, 2) // seconds and microseconds
	for i := range clock {
		text, _ := fields[i].(string) // another type is no number, either
		if clock[i], err = strconv.ParseFloat(text, 64); err != nil {
			return nil, 0, fmt.Errorf("redis permit store: read %s: clock: %w", c.key, err)
		}
	}
	return fields[2:], clock[0] + clock[1]/1e6, nil
}

// State returns the schedule of the limit with that key.
func (l *Store) State(ctx context.Context, key string) (s schedule.State, now float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	c := &call{script: &stateScript, key: key}
	l.run(ctx, []*call{c})
	fields, now, err := l.fields(c)
	if err != nil {
		return s, 0, err
	}
	if text, _ := fields[0].(string); text != "" {
		if s, err = parseState(text); err != nil {
			return s, now, fmt.Errorf("redis permit store: read %s: %w", key, err)
		}
		ramp, _ := fields[1].(string)
		parseRamp(ramp, &s)
		queue, _ := fields[2].(string)
		parseQueue(queue, &s)
		outcomes, _ := fields[3].(string)
		parseOutcomes(outcomes, &s)
	}
	return s, now, nil
}

// stateScript returns the fields of a limit's hash and the clock. It is one script, so that in a Cluster both are the same
// server's.
var stateScript = newScript(`
local time = redis.call('TIME')
return {time[1], time[2], redis.call('HGET', KEYS[1], 'l'), redis.call('HGET', KEYS[1], 'r'), redis.call('HGET', KEYS[1], 'q'), redis.call('HGET', KEYS[1], 'b')}`)

// parseState reads the field l of a limit's hash: the version in decimal, a space, the numbers, the identity.
func parseState(text string) (s schedule.State, err error) {
	version, rest, _ := strings.Cut(text, " ")
	if v, err := strconv.Atoi(version); err == nil && v > schedule.Version {
		return s, fmt.Errorf("state is of version %d, this program knows %d: upgrade it", v, schedule.Version)
	}
	if version != strconv.Itoa(schedule.Version) || len(rest) < 21*8 {
		return s, errors.New("state makes no sense: the next allocation replaces it")
	}
	n := numbers(rest)
	s.Inc, s.Seq, s.Last, s.Rev, s.Rate, s.Tail, s.Epoch, s.Start = n.int(), n.int(), n.next(), n.int(), n.next(), n.next(), n.int(), n.next()
	s.This = schedule.Sums{Weight: n.next(), Reserved: n.next(), Need: n.next()}
	s.Prev = schedule.Sums{Weight: n.next(), Reserved: n.next(), Need: n.next()}
	s.Resumed, s.Shifts = n.next(), n.next()
	s.Step = schedule.Step{By: n.next(), Ahead: n.next(), At: n.next()}
	s.Server, s.Checked = n.next(), n.next()
	s.Identity = string(n)
	return s, nil
}

// parseRamp reads the field r of a limit's hash; a limit without a ramp has none.
func parseRamp(text string, s *schedule.State) {
	if s.Top = s.Rate; len(text) != 8*8 {
		return
	}
	n := numbers(text)
	s.Top = n.next()
	s.Ramp = schedule.Ramp{From: n.next(), Over: n.next(), TTL: n.next(), Relaxed: n.next() == 1}
	s.Line = schedule.Line{Rate: n.next(), Epoch: n.int(), Seen: n.next()}
}

// parseOutcomes reads the field b of a limit's hash; one that does not slow down for others has none.
func parseOutcomes(text string, s *schedule.State) {
	if len(text) != 14*8 {
		return
	}
	n := numbers(text)
	s.Top = n.next()
	s.Outcomes = schedule.Outcomes{
		Service: busy.State{
			Limit: n.next(), Low: n.next(), Good: n.next(), Since: n.next(), Cut: n.next(), Back: n.next(),
			Step: n.next(), NotYet: n.next(), Healthy: n.next(),
		},
		Window: schedule.Answers{OK: n.next(), Busy: n.next(), RetryAfter: n.next()},
		Since:  n.next(),
	}
}

// parseQueue reads the field q: of each waiter until when he is waited for, the length of his name, and the name.
func parseQueue(text string, s *schedule.State) {
	for len(text) >= 9 && len(text) >= 9+int(text[8]) {
		n := numbers(text)
		end := 9 + int(text[8])
		s.Queue = append(s.Queue, schedule.Waiter{Name: text[9:end], Until: n.next()})
		text = text[end:]
	}
}

// Publish keeps a replica's status for ttl.
func (l *Store) Publish(ctx context.Context, cluster, replica string, status []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	pipe := l.client.Pipeline()
	pipe.Set(ctx, permits.RedisStatus(cluster, replica), status, ttl)
	pipe.SAdd(ctx, permits.RedisReplicas(cluster), replica)
	pipe.Expire(ctx, permits.RedisReplicas(cluster), max(ttl, time.Hour))
	if _, err := pipe.Exec(ctx); err != nil {
		return l.wrap("publish the status", err)
	}
	return nil
}

// Published returns the status of each replica that is alive, and forgets the names of the others.
func (l *Store) Published(ctx context.Context, cluster string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	names, err := l.client.SMembers(ctx, permits.RedisReplicas(cluster)).Result()
	if err != nil || len(names) == 0 {
		return nil, l.wrap("read the replicas", err)
	}
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = permits.RedisStatus(cluster, name)
	}
	values, err := l.client.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, l.wrap("read the status records", err)
	}
	var alive [][]byte
	var gone []any
	for i, v := range values {
		if text, ok := v.(string); ok {
			alive = append(alive, []byte(text))
		} else {
			gone = append(gone, names[i])
		}
	}
	if len(gone) > 0 {
		_ = l.client.SRem(ctx, permits.RedisReplicas(cluster), gone...).Err() // the next reader tries again
	}
	return alive, nil
}

// Replicas counts the replicas that are alive.
func (l *Store) Replicas(ctx context.Context, cluster string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	names, err := l.client.SMembers(ctx, permits.RedisReplicas(cluster)).Result()
	if err != nil || len(names) == 0 {
		return 0, l.wrap("read the replicas", err)
	}
	for i, name := range names {
		names[i] = permits.RedisStatus(cluster, name)
	}
	n, err := l.client.Exists(ctx, names...).Result()
	return int(n), l.wrap("count the replicas", err)
}

// Wakes listens to what allocate.lua publishes for a process. A lost connection is made again.
func (l *Store) Wakes(ctx context.Context, process string, woken func(waiter string)) error {
	sub := l.client.Subscribe(ctx, permits.RedisWake(process))
	defer func() { _ = sub.Close() }() // nothing to lose
	words := sub.Channel()
	for {
		select {
		case <-ctx.Done():
			return nil
		case word, ok := <-words:
			if !ok {
				return nil
			}
			woken(word.Payload)
		}
	}
}

// wrap adds what failed and, where a server that wants TLS or has none would look so, that.
func (l *Store) wrap(doing string, err error) error {
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		return nil
	case l.tls && ok && timeout.Timeout():
		err = fmt.Errorf("%w (no answer over TLS: if the server has none, use redis:// without options of TLS)", err)
	case !l.tls && errors.Is(err, io.EOF):
		err = fmt.Errorf("%w (the server closed the connection: if it wants TLS, use rediss:// or tls=true)", err)
	}
	return fmt.Errorf("redis permit store: %s: %w", doing, err)
}
