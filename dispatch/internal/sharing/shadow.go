package sharing

import "sync/atomic"

// A shadowed counts the messages that pass a limit in shadow mode without a permit, and the permits
// that they lacked. Stats has the messages only. Any goroutine may use it.
type shadowed struct {
	messages atomic.Int64 // that passed without a permit, all time
	permits  atomic.Int64 // that they lacked, all time
	unused   atomic.Int64 // permits of messages that passed and were not used: the next ones use them
}

// takeUnused takes up to n unused permits, and returns what is left of n.
func (s *shadowed) takeUnused(n int64) int64 {
	for {
		unused := s.unused.Load()
		took := min(n, unused)
		if took == 0 || s.unused.CompareAndSwap(unused, unused-took) {
			return n - took
		}
	}
}

// used is how many permits were used beyond those taken, all time.
func (s *shadowed) used() int64 { return s.permits.Load() - s.unused.Load() }

// Pass takes the permits of n messages in shadow mode as far as there are some, and reports whether
// they were there. Those that were not count as demand.
func (b *Bucket) Pass(n int64) bool {
	n = b.shadow.takeUnused(n)
	missing := n - b.Take(n)
	return b.lack(missing, missing)
}

// PassBytes is Pass for n messages of that many bytes: one byte is enough for all of them, as it is
// for Charge.
func (b *Bucket) PassBytes(n, bytes int64) bool {
	bytes = b.shadow.takeUnused(bytes)
	if bytes == 0 || b.Charge(bytes) {
		return true
	}
	return b.lack(n, bytes)
}

// Unpass gives up permits of messages that passed in shadow mode and were not used. They are no
// permits that callers could take, since nobody may have allocated them; but as many of the next
// messages do not count.
func (b *Bucket) Unpass(permits int64) { b.shadow.unused.Add(permits) }

func (b *Bucket) lack(messages, permits int64) (enough bool) {
	if permits == 0 {
		return true
	}
	b.refused.Add(permits)
	b.shadow.permits.Add(permits)
	b.shadow.messages.Add(messages)
	return false
}
