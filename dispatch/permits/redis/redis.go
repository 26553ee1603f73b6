// Package redispermits keeps the schedules of all processes in Redis: a single server, Sentinel
// or Cluster. An allocation is one script call, whose cost does not depend on how many replicas
// share the limit.
//
// A Limiter logs once that its permit store is unavailable. go-redis, which would write each
// failed dial to standard error, sees none of them. Behind Sentinels it still writes which master
// it has found, and each Sentinel that it cannot reach; a program that wants none of that calls
// redis.SetLogger.
package redispermits

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/internal/role"
)

// DefaultTimeout bounds each call of the permit store at first.
const DefaultTimeout = 200 * time.Millisecond

// buffer is the size of a connection's two buffers, in bytes: 70 allocations.
const buffer = 32 << 10

// A Store is the Redis permit store. Any number of goroutines may use it at once.
type Store struct {
	client  redis.UniversalClient
	timeout *permits.Timeout
	tls     bool
	joined  joined // calls of Do
}

// An Option changes how a Store connects.
type Option func(*options)

type options struct {
	tls       func() (*tls.Config, error)
	sentinels *Sentinels
}

// WithTLS asks for the TLS configuration at each connection, in place of that of UniversalOptions.
func WithTLS(secure func() (*tls.Config, error)) Option { return func(o *options) { o.tls = secure } }

// WithSentinels says how to log in to Sentinels. Default: without a password, and with the TLS of
// the servers.
func WithSentinels(s Sentinels) Option { return func(o *options) { o.sentinels = &s } }

// Open returns a permit store on the servers of o. It sets o's timeouts and retries: nothing is
// sent twice, and a call ends within timeout (0 = DefaultTimeout), which adapts to slower servers
// as a [permits.Timeout]. The store connects when it is first used, so that a process can start
// while Redis is unavailable.
func Open(o redis.UniversalOptions, timeout time.Duration, opts ...Option) *Store {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	o.ContextTimeoutEnabled = true
	o.MaxRetries = -1
	o.MaxRedirects = 3
	o.MinRetryBackoff, o.MaxRetryBackoff = -1, -1 // a call that a Cluster redirects does not wait
	o.PoolSize = 1000
	o.PipelineReadBufferSize, o.PipelineWriteBufferSize = buffer, buffer
	adaptive := permits.NewTimeout(timeout)
	longest := adaptive.Max() // each call's context ends earlier
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = longest, longest, longest, longest
	var with options
	if o.TLSConfig != nil {
		with.tls = func() (*tls.Config, error) { return o.TLSConfig, nil }
	}
	for _, opt := range opts {
		opt(&with)
	}
	secure := checked(overTLS(with.tls))
	switch {
	case o.Dialer != nil: // it does as it likes
		o.Dialer = bounded(o.Dialer, checked(overTLS(nil)), adaptive)
	case o.MasterName == "":
		o.Dialer = bounded(tcp(longest), secure, adaptive)
	default:
		if with.sentinels == nil {
			with.sentinels = &Sentinels{TLS: with.tls}
		}
		o.Dialer = with.sentinels.dial(bounded(tcp(longest), overTLS(nil), adaptive), adaptive)
	}
	o.Dialer = quiet(o.Dialer)
	o.DialerRetries = 1      // behind Sentinels a dial can fail, when it does not find the master
	o.DisableIdentity = true // it takes a right of its own
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	client := redis.NewUniversalClient(&o)
	if o.MasterName != "" {
		client.AddHook(masters{secure})
	}
	s := &Store{client: client, timeout: adaptive, tls: with.tls != nil}
	s.joined.sharded = s.Sharded()
	return s
}

// Sharded reports whether the server is a Redis Cluster.
func (s *Store) Sharded() bool { _, ok := s.client.(*redis.ClusterClient); return ok }

// Database is the number of the database.
func (s *Store) Database() int {
	if client, ok := s.client.(*redis.Client); ok {
		return client.Options().DB
	}
	return 0
}

// Timeout is the longest that a call takes that begins now.
func (s *Store) Timeout() time.Duration { return s.timeout.Current() }

// Close closes the connections.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("redis permit store: close: %w", err)
	}
	return nil
}

// Do runs all allocations and reads all records in one pipeline, and replaces the records in a
// second one, which also reads those that another process has replaced in between. The answers of
// the other requests wait for them. Calls of several goroutines share pipelines, and connections.
func (s *Store) Do(ctx context.Context, requests []*permits.Request) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	calls := make([]*call, 0, len(requests))
	for _, r := range requests {
		if r.Allocate != nil {
			args := arguments(&r.Allocate.Request)
			calls = append(calls, &call{script: &allocateScript, key: r.Key, args: args})
		}
	}
	records := permits.PoolRecords(requests)
	reads := readCalls(records)
	s.joined.run(ctx, append(calls, reads...), s.run)
	for _, r := range requests {
		if r.Allocate != nil {
			r.Allocate.Reply, r.Err = s.reply(calls[0])
			calls = calls[1:]
		}
	}
	for attempt := 0; ; attempt++ {
		if records, reads = s.swap(ctx, records, reads); len(records) == 0 {
			return
		}
		if err := permits.WaitAfterConflict(ctx, attempt); err != nil {
			for _, r := range records {
				r.Fail(s.wrap("update "+r.Key, err))
			}
			return
		}
	}
}

// State returns the schedule of the limit with that key.
func (s *Store) State(
	ctx context.Context, key string,
) (state schedule.State, now float64, err error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	c := &call{script: &stateScript, key: key}
	s.run(ctx, []*call{c})
	fields, now, err := s.fields(c, 5)
	if err != nil {
		return state, 0, err
	}
	if text, _ := fields[0].(string); text != "" {
		if state, err = parseState(text); err != nil {
			return state, now, fmt.Errorf("redis permit store: read %s: %w", key, err)
		}
		ramp, _ := fields[1].(string)
		parseRamp(ramp, &state)
		queue, _ := fields[2].(string)
		parseQueue(queue, &state)
		outcomes, _ := fields[3].(string)
		parseOutcomes(outcomes, &state)
		sources, _ := fields[4].(string)
		parseSources(sources, &state)
	}
	return state, now, nil
}

// denied reports whether the server has refused a command to this user. In a script, Redis 7.0 says
// so in the second way, and later ones in the third.
func denied(err error) bool {
	text := err.Error()
	return redis.HasErrorPrefix(err, "NOPERM") ||
		strings.Contains(text, "The user executing the script") ||
		strings.Contains(text, "ACL failure in script")
}

// beforeArguments is what follows the name of an unknown command in a server's error.
const beforeArguments = ", with args beginning with:"

// withoutArguments is an error without the arguments of a command that the server does not know:
// those of AUTH are the user and the password.
type withoutArguments struct{ error }

func (e withoutArguments) Error() string {
	text, _, _ := strings.Cut(e.error.Error(), beforeArguments)
	return text
}

func (e withoutArguments) Unwrap() error { return e.error }

// wrap adds what failed and, where the cause may be that the user lacks a right or that only one
// side uses TLS, that hint.
func (s *Store) wrap(doing string, err error) error {
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		return nil
	case redis.HasErrorPrefix(err, "unknown command"):
		err = withoutArguments{err}
	case denied(err):
		err = role.Denied(err, role.Redis, "")
	case s.tls && ok && timeout.Timeout():
		err = fmt.Errorf("%w (no answer over TLS: if the server has none, "+
			"use redis:// without options of TLS)", err)
	case !s.tls && errors.Is(err, io.EOF):
		err = fmt.Errorf("%w (the server closed the connection: if it wants TLS, "+
			"use rediss:// or tls=true)", err)
	}
	return fmt.Errorf("redis permit store: %s: %w", doing, err)
}

// Wakes calls woken with the waiters that allocate.lua publishes for a process. It reconnects
// after a lost connection, and returns an error if the user may not subscribe.
func (s *Store) Wakes(ctx context.Context, process string, woken func(waiter string)) error {
	sub := s.client.Subscribe(ctx, permits.RedisWake(process))
	defer func() { _ = sub.Close() }() // nothing to lose
	if _, err := sub.ReceiveTimeout(ctx, s.Timeout()); err != nil && denied(err) {
		return s.wrap("subscribe to "+permits.RedisWake(process), err)
	}
	messages := sub.Channel()
	for {
		select {
		case <-ctx.Done():
			return nil
		case m, ok := <-messages:
			if !ok {
				return nil
			}
			woken(m.Payload)
		}
	}
}
