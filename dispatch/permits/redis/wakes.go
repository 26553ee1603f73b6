package redispermits

import (
	"context"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

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
