package engine

import (
	"math"
	"sync/atomic"
)

// An averageSize is the running average of messages' sizes, which unknown ones are charged at. Any
// goroutine may use it.
type averageSize struct{ bits atomic.Uint64 }

// average is in bytes; 1 KiB before anything is known.
func (s *averageSize) average() float64 {
	if bits := s.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 1024
}

// learn moves the average by a sixteenth a message.
func (s *averageSize) learn(messages int, bytes int64) {
	mean := float64(bytes) / float64(messages)
	average := mean
	if old := s.bits.Load(); old != 0 {
		o := math.Float64frombits(old)
		average = o + (mean-o)*(1-math.Pow(15.0/16, float64(messages)))
	}
	s.bits.Store(math.Float64bits(max(1, average)))
}
