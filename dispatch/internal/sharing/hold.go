package sharing

import "time"

// Hold notes that n permits that were just taken are held until then. Any goroutine may call it.
func (b *Bucket) Hold(n int64, now, until time.Duration) {
	s := b.stock.Load()
	if s == nil {
		s = &stock{now: stockTickOf(now)}
		s.released[place(s.now)] = n + b.Available()
		if !b.stock.CompareAndSwap(nil, s) {
			s = b.stock.Load()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(now)
	if d := until - now; d >= s.longest || now > s.since+2*s.longest {
		s.longest, s.since = d, now
	}
	s.ends[place(stockTickOf(until))] += n
}

// EndHold notes that n permits that were held until then are held no more. Those that were not used
// go back. After the Hold, or if they are too many, they only shorten a debt. If unused is below
// zero, it is a debt. Any goroutine may call it.
func (b *Bucket) EndHold(n, unused int64, now, until time.Duration) {
	s := b.stock.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(now)
	if t := stockTickOf(until); t >= s.now {
		s.ends[place(t)] -= n
	}
	if unused <= 0 {
		b.Return(unused)
		return
	}
	back := int64(0)
	if now <= until {
		back = min(unused, max(0, s.bound(now)-s.held()-b.avail.Load()))
		b.Return(back)
		b.holdReturned.Store(true)
	}
	b.Forgive(unused - back)
}
