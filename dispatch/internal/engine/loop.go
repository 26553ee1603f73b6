package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// tick is the shortest sleep of the loop, if no touch and no answer ends it.
const tick = 2 * time.Millisecond

// pacedTick is the same while lanes with strict limits are due.
const pacedTick = tick / 20

// maxSleep is the longest sleep of the loop.
const maxSleep = time.Hour

// maxBatch is for a store that answers at once: a step leaves the lanes that are due beyond so
// many requests to the next one. Then lanes and requests are still in the processor's cache when
// the answers are taken in.
const maxBatch = 32

// A loop steps the lanes that have something to do: those that were touched since the last step,
// and those that are due. One call of the permit store carries all allocations of a step, another
// all heartbeats and draws; a store that answers at once gets both in one call. Engine embeds it.
type loop struct {
	stop    context.CancelFunc
	instant bool // the store answers without waiting: it is called with Engine.mu held
	running sync.WaitGroup

	steps   atomic.Uint64 // counts the steps
	ticking atomic.Bool   // a step follows within a tick: touch need not wake the loop
	wakeup  chan struct{}

	touchedMu sync.Mutex // guards touched
	touched   []*Lane

	// The loop's goroutine alone uses these.
	due   dueLanes
	paced dueLanes // lanes with strict limits, which are not stepped a tick late
	spare []*Lane  // the other buffer of touched
	sent  int      // calls of the store that are not answered
}

// A sending is a request on its way.
type sending struct {
	lane       *Lane
	share      *sharing.Share
	request    *permits.Request
	answeredAt float64
}

func (p *loop) init(stop context.CancelFunc, instant bool) {
	p.stop, p.instant = stop, instant
	p.wakeup = make(chan struct{}, 1)
}

// touch has the loop step a lane: within a tick, or at once if now is set and the loop is not just
// going to sleep for a tick. Engine.mu need not be held.
func (p *loop) touch(l *Lane, now bool) {
	if !l.touched.Swap(true) {
		p.touchedMu.Lock()
		p.touched = append(p.touched, l)
		p.touchedMu.Unlock()
	} else if !now {
		return
	}
	if now || !p.ticking.Load() {
		p.wake()
	}
}

func (p *loop) wake() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

// takeTouched returns the lanes that were touched, and forgets them. The result is
// valid until the next call, by the loop's goroutine alone.
func (p *loop) takeTouched() []*Lane {
	p.touchedMu.Lock()
	defer p.touchedMu.Unlock()
	touched := p.touched
	p.touched, p.spare = p.spare[:0], touched
	return touched
}

// run is the loop. It takes the lock itself.
func (e *Engine) run(ctx context.Context) {
	answers := make(chan []sending)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var batch []sending // answers that have come, then requests; its memory is used again
	for {
		batch = batch[:0]
		select {
		case <-ctx.Done():
			e.drain(answers)
			return
		case <-e.wakeup:
		case <-timer.C:
		case batch = <-answers:
			e.sent--
		}
		e.ticking.Store(false) // from here on a touch leaves a wake-up, so that none is missed
		t := time.Now()
		e.mu.Lock()
		var wait time.Duration
		wait, batch = e.step(t, batch)
		for len(batch) > 0 && e.instant {
			e.do(batch)
			t = time.Now() // after the answers, so that the first permits are due
			wait, batch = e.step(t, batch)
		}
		e.mu.Unlock()
		e.send(batch, answers)
		if wait <= tick { // the next step covers the lanes touched meanwhile: drop their wake-up
			e.ticking.Store(true)
			select {
			case <-e.wakeup:
			default:
			}
		}
		timer.Reset(time.Until(t.Add(wait)))
	}
}

// step takes answers in, and steps the lanes that were touched or are due. It returns how long the
// loop may sleep, and the requests to send, in the memory of the answers.
func (e *Engine) step(t time.Time, answered []sending) (wait time.Duration, out []sending) {
	now := e.clock(t)
	e.steps.Add(1)
	e.settle(answered, now)
	e.takeWoken(now)
	clear(answered)
	out = answered[:0]
	touched := e.takeTouched()
	for _, l := range touched {
		l.touched.Store(false) // a caller that comes from now on touches it again
		out = l.step(t, now, out)
	}
	clear(touched) // so that its memory, which is used again, keeps no lane that has ended
	for _, lanes := range []*dueLanes{&e.due, &e.paced} {
		// Each step of a lane sets when it is due again, after now.
		for lanes.next() <= now && (len(out) < maxBatch || !e.instant) {
			out = (*lanes)[0].lane.step(t, now, out)
		}
	}
	until := func(at float64) time.Duration { return seconds(min(maxSleep.Seconds(), at-now)) }
	return min(max(tick, until(e.due.next())), max(pacedTick, until(e.paced.next()))), out
}

// setDue sets when a lane is stepped next; +Inf = not until it is touched.
func (e *Engine) setDue(l *Lane, at float64) {
	lanes := &e.due
	if l.limits.paced != nil {
		lanes = &e.paced
	}
	if l.heap != lanes && l.heap != nil {
		l.heap.remove(l)
	}
	l.heap = lanes
	lanes.set(l, at)
}

// settle takes answers in.
func (e *Engine) settle(answered []sending, now float64) {
	for _, s := range answered {
		s.share.Mode.Answered(s.request, s.answeredAt, now)
		e.count(s, now)
		l := s.lane
		for l.successor != nil && !slices.Contains(l.retired, s.share) {
			l = l.successor // it has taken the share over
		}
		if s.request.Err == nil && s.share.Mode.Covered(now) {
			// The permits are for later: there is nothing to do before WakeAt.
			e.setDue(l, min(s.share.Mode.WakeAt(now), l.due))
		} else {
			e.touch(l, false)
		}
	}
}

// send makes the requests in the background: the allocations in one call of the permit store, and
// the others in another, since a change of a pool record takes more round trips. Only the loop's
// goroutine calls it.
func (e *Engine) send(out []sending, answers chan<- []sending) {
	var allocations, others []sending
	for _, s := range out {
		if s.request.Allocate != nil {
			allocations = append(allocations, s)
		} else {
			others = append(others, s)
		}
	}
	for _, call := range [][]sending{allocations, others} {
		if len(call) == 0 {
			continue
		}
		e.sent++
		e.running.Go(func() {
			e.do(call)
			answers <- call
		})
	}
}

// do makes a call of the permit store. The end of the engine does not cancel it, since a request
// that was sent may take effect: only the store's own time-out ends it. Engine.mu need not be
// held.
func (e *Engine) do(out []sending) {
	requests := make([]*permits.Request, len(out))
	for i := range out {
		requests[i] = out[i].request
	}
	e.store.Do(context.Background(), requests)
	now := e.clock(time.Now())
	for i := range out {
		out[i].request.Check()
		out[i].answeredAt = now
	}
}

// drain waits for the answers that are still to come, and gives back what is held. It takes the
// lock itself.
func (e *Engine) drain(answers <-chan []sending) {
	for ; e.sent > 0; e.sent-- {
		answered := <-answers
		e.mu.Lock()
		e.settle(answered, e.clock(time.Now()))
		e.mu.Unlock()
	}
	e.mu.Lock()
	e.env.Closing = true
	now := e.clock(time.Now())
	var out []sending
	for _, l := range e.takeTouched() {
		l.touched.Store(false)
		e.setDue(l, now) // so that it is among those below
	}
	for _, entry := range slices.Concat(e.due, e.paced) {
		l := entry.lane
		for _, s := range l.shares() {
			if s.FailingFor(now) > 0 { // Close does not wait for a store that is unavailable
				continue
			}
			if r := s.Mode.Drain(now); r != nil {
				out = append(out, sending{lane: l, share: s, request: r})
			}
		}
	}
	e.mu.Unlock()
	if len(out) > 0 {
		e.do(out)
	}
}
