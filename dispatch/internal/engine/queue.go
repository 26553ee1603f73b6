package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A queue is the callers of a lane that wait, in the order they came. While it is locked, no caller
// that goes through the queue gets permits before one that came earlier. Any goroutine may use it.
type queue struct {
	length atomic.Int32 // of callers: newcomers go behind them

	mu      sync.Mutex // guards these
	callers []*caller
	entered uint64  // callers that have ever entered
	wanted  float64 // messages that those in the queue ask for, in all
	waits   waitStats
}

// A caller waits in the queue of a lane.
type caller struct {
	number uint64 // of the lane's callers, in the order they came
	max    int64
	size   int64 // bytes; -1 = unknown
	try    bool  // does not wait for permits, only for the answer whether a strict slot is free
	since  time.Time
	why    string
	ready  chan struct{} // gets one value when the answer is there

	grant Grant
	until time.Duration // that a strict slot may be used, since the engine's start; 0 = without end
	next  time.Time     // of a try that was refused: when to come back
	err   error
}

func newCaller() any { return &caller{ready: make(chan struct{}, 1)} }

// tooLate reports whether a caller that has its answer came too late for its slot.
func (c *caller) tooLate(start time.Time) bool {
	return c.err == nil && c.until != 0 && time.Since(start) > c.until
}

// enter puts a new caller at the end. The queue is locked.
func (q *queue) enter(c *caller) {
	q.entered++
	c.number = q.entered
	q.callers = append(q.callers, c)
	q.changed(c.max)
}

// enterAgain puts a caller that has left back at its place. The queue is locked.
func (q *queue) enterAgain(c *caller) {
	place := slices.IndexFunc(q.callers, func(other *caller) bool { return other.number > c.number })
	if place < 0 {
		place = len(q.callers)
	}
	q.callers = slices.Insert(q.callers, place, c)
	q.changed(c.max)
}

// leave takes a caller out; false if it has its answer already. The queue is not locked.
func (q *queue) leave(c *caller) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.callers, c)
	if i < 0 {
		return false
	}
	q.callers = slices.Delete(q.callers, i, i+1)
	q.changed(-c.max)
	return true
}

// changed adds to the messages that the callers ask for, and tells newcomers how many callers there
// are.
func (q *queue) changed(messages int64) {
	q.wanted += float64(messages)
	q.length.Store(int32(len(q.callers)))
}

// answer goes through the callers in order, and stops at the first that has no answer: tryAnswer
// fills in a caller's answer, and reports whether there is one. Callers with an answer are woken
// and taken out. The queue is locked.
func (q *queue) answer(tryAnswer func(c *caller) bool) (answered int) {
	messages := int64(0)
	for _, c := range q.callers {
		if !tryAnswer(c) {
			break
		}
		answered++
		messages += c.max
		c.ready <- struct{}{}
	}
	if answered > 0 {
		rest := copy(q.callers, q.callers[answered:])
		clear(q.callers[rest:])
		q.callers = q.callers[:rest]
		q.changed(-messages)
	}
	return answered
}
