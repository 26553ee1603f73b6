package sharing

import (
	"sync"
	"time"
)

// A stock bounds what callers hold of a bucket after Grant.Hold, with what they gave back and
// nobody has taken yet: by what was released within the longest Hold, or by most of the replica's
// share of that time. Otherwise a caller that gives permits back and takes them again, while new
// ones come, would hold more each time.
//
// Times are since the engine's start, in ticks. They go round: two that are stockTicks apart have
// one place in the arrays.
type stock struct {
	mu       sync.Mutex
	now      int64             // the tick that the arrays have been brought to
	released [stockTicks]int64 // permits, by the tick of their release
	ends     [stockTicks]int64 // permits held, by the tick in which their Hold ends
	longest  time.Duration     // of the Holds of late
	since    time.Duration     // when it began
	share    float64           // permits a second that the replica wants and may count on
	shareAt  time.Duration     // when it was told that
}

// MaxHold bounds how long after Hold the permits of a Grant can be given back.
const MaxHold = 3 * time.Second

const (
	stockTick  = 25 * time.Millisecond
	stockTicks = int64((MaxHold+stockSlack)/stockTick) + 4 // a few more than in both

	// stockSlack is how long permits may wait between their release and the Hold.
	stockSlack = 4 * stockTick

	// shareHeld is the part of its share that a replica may hold where less was released of late: one
	// that collects permits for some time, and none while it works, gets them unevenly. With all of
	// the share, replicas of which some become quiet would hold too much together.
	shareHeld = 0.75

	// shareLasts is how long a share that was told counts: replicas that request nothing are soon
	// counted no more.
	shareLasts = 600 * time.Millisecond
)

// full reports whether callers hold so much that nothing more is to be requested, until some of it
// is used or given back. share is what the replica wants and may count on, as it was told at
// shareAt. Nothing is held of a nil stock.
func (s *stock) full(now time.Duration, share float64, shareAt time.Duration) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(now)
	s.share, s.shareAt = share, shareAt
	return s.held() > s.bound(now)
}

// release notes that n permits were put into the counter; a negative n was taken out again. A nil
// stock has nothing to note.
func (s *stock) release(n int64) {
	if s != nil {
		s.mu.Lock()
		s.released[place(s.now)] += n
		s.mu.Unlock()
	}
}

// held is what is held now.
func (s *stock) held() (n int64) {
	for _, k := range s.ends {
		n += k
	}
	return n
}

// bound is how many permits may be held or, given back, wait in the counter.
func (s *stock) bound(now time.Duration) (n int64) {
	for t := s.now - stockTickOf(s.longest+stockSlack); t <= s.now; t++ {
		n += s.released[place(t)]
	}
	if now <= s.shareAt+shareLasts {
		n = max(n, int64(shareHeld*s.share*s.longest.Seconds()))
	}
	return n
}

// advance brings the stock to now.
func (s *stock) advance(now time.Duration) {
	to := stockTickOf(now)
	if to-s.now >= stockTicks {
		s.released, s.ends, s.now = [stockTicks]int64{}, [stockTicks]int64{}, to
	}
	for ; s.now < to; s.now++ {
		s.ends[place(s.now)], s.released[place(s.now+1)] = 0, 0
	}
}

func stockTickOf(t time.Duration) int64 { return int64(t / stockTick) }

// place is the place of a tick in the arrays.
func place(tick int64) int64 { return (tick + stockTicks) % stockTicks }
