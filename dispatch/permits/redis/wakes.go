package redispermits

import (
	"context"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// Wakes calls woken with the waiters that allocate.lua publishes for a process. It reconnects
// after a lost connection.
func (s *Store) Wakes(ctx context.Context, process string, woken func(waiter string)) error {
	sub := s.client.Subscribe(ctx, permits.RedisWake(process))
	defer func() { _ = sub.Close() }() // nothing to lose
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
