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
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// DefaultTimeout bounds each call of the permit store.
const DefaultTimeout = 200 * time.Millisecond

// A Store is the Redis permit store. Any number of goroutines may use it at once.
type Store struct {
	client  redis.UniversalClient
	timeout time.Duration
	tls     bool
}

// Open returns a permit store on the servers of o. It sets o's timeouts and retries: each call
// ends within timeout (0 = DefaultTimeout), and nothing is sent twice. The store connects when it
// is first used, so that a process can start while Redis is unavailable.
func Open(o redis.UniversalOptions, timeout time.Duration) *Store {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	o.ContextTimeoutEnabled = true
	o.MaxRetries = -1
	o.MaxRedirects = 3
	o.MinRetryBackoff, o.MaxRetryBackoff = -1, -1 // a call that a Cluster redirects does not wait
	o.PoolSize = 1000
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
	if o.Dialer == nil {
		o.Dialer = redis.NewDialer(&redis.Options{DialTimeout: timeout, TLSConfig: o.TLSConfig})
	}
	o.Dialer = quiet(o.Dialer)
	o.DialerRetries = 1 // behind Sentinels a dial can fail, when it does not find the master
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &Store{redis.NewUniversalClient(&o), timeout, o.TLSConfig != nil}
}

// Timeout is the longest that a call takes.
func (s *Store) Timeout() time.Duration { return s.timeout }

// Close closes the connections.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("redis permit store: close: %w", err)
	}
	return nil
}

// Do runs all allocations and reads all records in one pipeline, and replaces the records in a
// second one. A record that another process has replaced in between is read again; the answers of
// the other requests wait for it.
func (s *Store) Do(ctx context.Context, requests []*permits.Request) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	calls := make([]*call, 0, len(requests))
	for _, r := range requests {
		if r.Allocate != nil {
			args := arguments(&r.Allocate.Request)
			calls = append(calls, &call{script: &allocateScript, key: r.Key, args: args})
		}
	}
	records := permits.PoolRecords(requests)
	reads := readCalls(records)
	s.run(ctx, append(calls, reads...))
	for _, r := range requests {
		if r.Allocate != nil {
			r.Allocate.Reply, r.Err = s.reply(calls[0])
			calls = calls[1:]
		}
	}
	for attempt := 0; ; attempt++ {
		if records = s.swap(ctx, records, reads); len(records) == 0 {
			return
		}
		if err := permits.WaitAfterConflict(ctx, attempt); err != nil {
			for _, r := range records {
				r.Fail(s.wrap("update "+r.Key, err))
			}
			return
		}
		reads = readCalls(records)
		s.run(ctx, reads)
	}
}

// State returns the schedule of the limit with that key.
func (s *Store) State(
	ctx context.Context, key string,
) (state schedule.State, now float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	c := &call{script: &stateScript, key: key}
	s.run(ctx, []*call{c})
	fields, now, err := s.fields(c)
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
	}
	return state, now, nil
}

// wrap adds what failed and, where the cause may be that only one side uses TLS, that hint.
func (s *Store) wrap(doing string, err error) error {
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		return nil
	case s.tls && ok && timeout.Timeout():
		err = fmt.Errorf("%w (no answer over TLS: if the server has none, "+
			"use redis:// without options of TLS)", err)
	case !s.tls && errors.Is(err, io.EOF):
		err = fmt.Errorf("%w (the server closed the connection: if it wants TLS, "+
			"use rediss:// or tls=true)", err)
	}
	return fmt.Errorf("redis permit store: %s: %w", doing, err)
}
