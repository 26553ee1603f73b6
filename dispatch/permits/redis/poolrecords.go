package redispermits

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// readCalls are the calls that read the records.
func readCalls(records []*permits.PoolRecord) []*call {
	calls := make([]*call, len(records))
	for i, r := range records {
		calls[i] = &call{script: &readScript, key: r.Key}
	}
	return calls
}

func swapCall(key string, old, text []byte, ttl time.Duration) *call {
	return &call{script: &swapScript, key: key, args: []any{old, text, max(1, ttl.Milliseconds())}}
}

// swap replaces the records, which reads have read, and returns those that have changed since, with
// the calls that have read them again.
func (s *Store) swap(
	ctx context.Context, records []*permits.PoolRecord, reads []*call,
) (lost []*permits.PoolRecord, again []*call) {
	var swaps []*call
	var swapped []*permits.PoolRecord
	for i, r := range records {
		old, now, err := s.value(reads[i])
		if err != nil {
			r.Fail(err)
		} else if next := r.Apply(old, now); next != nil {
			swaps = append(swaps, swapCall(r.Key, old, next, r.TTL))
			swapped = append(swapped, r)
		}
	}
	s.joined.run(ctx, swaps, s.run)
	for i, r := range swapped {
		if done, err := s.swapped(swaps[i]); err != nil {
			r.Fail(err)
		} else if !done {
			lost, again = append(lost, r), append(again, swaps[i])
		}
	}
	return lost, again
}

// swapped reports whether a call of swapScript has replaced the value.
func (s *Store) swapped(c *call) (done bool, err error) {
	if c.err != nil {
		return false, s.wrap("update "+c.key, c.err)
	}
	_, done = c.cmd.Val().(int64)
	return done, nil
}

// Update compares and swaps the value under key.
func (s *Store) Update(
	ctx context.Context, key string, ttl time.Duration, f func([]byte, float64) []byte,
) error {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	last := &call{script: &readScript, key: key}
	s.run(ctx, []*call{last})
	for attempt := 0; ; attempt++ {
		old, now, err := s.value(last)
		if err != nil {
			return err
		}
		last = swapCall(key, old, f(old, now), ttl)
		s.run(ctx, []*call{last})
		if done, err := s.swapped(last); err != nil || done {
			return err
		}
		if err := permits.WaitAfterConflict(ctx, attempt); err != nil {
			return s.wrap("update "+key, err)
		}
	}
}

// Value returns the value that Update keeps under key.
func (s *Store) Value(ctx context.Context, key string) ([]byte, float64, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	c := &call{script: &readScript, key: key}
	s.run(ctx, []*call{c})
	return s.value(c)
}

// value is the value that a call has read, nil if there is none, and the server's clock.
func (s *Store) value(c *call) (value []byte, now float64, err error) {
	fields, now, err := s.fields(c, 1)
	if err != nil {
		return nil, 0, err
	}
	if text, _ := fields[0].(string); text != "" {
		value = []byte(text)
	}
	return value, now, nil
}

// fields is what a script returned after the server's clock, n values, and that clock in seconds.
func (s *Store) fields(c *call, n int) (fields []any, now float64, err error) {
	if c.err != nil {
		return nil, 0, s.wrap("read "+c.key, c.err)
	}
	fields, err = c.cmd.Slice()
	if err != nil {
		return nil, 0, s.wrap("read "+c.key, err)
	}
	clock := make([]float64, 2) // seconds and microseconds
	if len(fields) != len(clock)+n {
		return nil, 0, fmt.Errorf("redis permit store: read %s: invalid answer of %d values: want %d",
			c.key, len(fields), len(clock)+n)
	}
	for i := range clock {
		text, _ := fields[i].(string) // "" is no number, either
		if clock[i], err = strconv.ParseFloat(text, 64); err != nil {
			return nil, 0, fmt.Errorf("redis permit store: read %s: clock: %w", c.key, err)
		}
	}
	return fields[2:], clock[0] + clock[1]/1e6, nil
}
