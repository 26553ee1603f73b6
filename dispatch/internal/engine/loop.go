package engine

import (
	"context"
	"slices"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
)

// pacedTick is the shortest sleep of the loop while lanes with strict limits are due.
const pacedTick = tick / 20

// maxSleep is the longest sleep of the loop.
const maxSleep = time.Hour

// maxRequests is for a store that answers at once: a step leaves the lanes that are due beyond so
// many requests to the next one. Then lanes and requests are still in the processor's cache when
// the answers are taken in.
const maxRequests = 32

// run is the loop: it steps the lanes that have something to do, those that were touched since the
// last step, and those that are due. One call of the permit store carries all allocations of a
// step, another all heartbeats and draws; a store that answers at once gets both in one call. It
// takes the lock itself.
func (e *Engine) run(ctx context.Context) {
	answers := make(chan []sending)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var calls []sending // answers that have come, then requests; its memory is used again
	for {
		calls = calls[:0]
		select {
		case <-ctx.Done():
			e.drain(answers)
			return
		case <-e.inbox.wakeup:
		case <-timer.C:
		case calls = <-answers:
			e.sent--
		}
		e.inbox.ticking.Store(false) // from here on a touch leaves a wake-up, so that none is missed
		t := time.Now()
		e.mu.Lock()
		var wait time.Duration
		wait, calls = e.step(t, calls)
		for len(calls) > 0 && e.instant {
			e.do(calls)
			t = time.Now() // after the answers, so that the first permits are due
			wait, calls = e.step(t, calls)
		}
		lines := e.journal.take()
		e.mu.Unlock()
		e.send(calls, answers)
		e.journal.write(lines)
		if wait <= tick { // the next step covers the lanes touched meanwhile: drop their wake-up
			e.inbox.ticking.Store(true)
			select {
			case <-e.inbox.wakeup:
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
	e.takeIn(answered, now)
	e.waiters.wake(now)
	clear(answered)
	out = answered[:0]
	touched := e.inbox.take()
	for _, l := range touched {
		l.touched.Store(false) // a caller that comes from now on touches it again
		out = e.stepLane(l, t, now, out)
	}
	clear(touched) // so that its memory, which is used again, keeps no lane that has ended
	for _, lanes := range []*dueLanes{&e.agenda.lanes, &e.agenda.paced} {
		// Each step of a lane sets when it is due again, after now.
		for lanes.next() <= now && (len(out) < maxRequests || !e.instant) {
			out = e.stepLane((*lanes)[0].lane, t, now, out)
		}
	}
	until := func(at float64) time.Duration { return seconds(min(maxSleep.Seconds(), at-now)) }
	return min(max(tick, until(e.agenda.lanes.next())), max(pacedTick, until(e.agenda.paced.next()))), out
}

// stepLane steps a lane, and adds its requests to out.
func (e *Engine) stepLane(l *Lane, t time.Time, now float64, out []sending) []sending {
	out, at := l.step(t, now, out)
	e.agenda.set(l, at)
	return out
}

// takeIn takes answers in.
func (e *Engine) takeIn(answered []sending, now float64) {
	e.availability.noteCall(answered, now)
	for _, s := range answered {
		s.share.Mode.Answered(s.request, s.answeredAt, now)
		e.availability.count(s.share, s.request, now)
		e.rivalled = e.rivalled || s.share.Rival(now) != ""
		l := s.lane
		for l.successor != nil && !slices.Contains(l.shares.retired, s.share) {
			l = l.successor // it has taken the share over
		}
		if s.request.Err == nil && s.share.Mode.Covered(now) {
			// The permits are for later: there is nothing to do before WakeAt.
			e.agenda.set(l, min(s.share.Mode.WakeAt(now), l.due.at))
		} else {
			l.touch(false)
		}
	}
}

// send makes the requests in the background: the allocations in one call of the permit store, and
// the others in another, since a change of a pool record takes more round trips. Neither call waits
// for the other. Only the loop's goroutine calls it.
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
	start := time.Now()
	e.store.Do(context.Background(), requests)
	end := time.Now()
	for i := range out {
		out[i].request.Check()
		out[i].answeredAt, out[i].took = e.clock(end), end.Sub(start).Seconds()
	}
}

// drain waits for the answers that are still to come, and gives back what is held. It takes the
// lock itself.
func (e *Engine) drain(answers <-chan []sending) {
	for ; e.sent > 0; e.sent-- {
		answered := <-answers
		e.mu.Lock()
		e.takeIn(answered, e.clock(time.Now()))
		e.mu.Unlock()
	}
	e.mu.Lock()
	e.env.Closing = true
	now := e.clock(time.Now())
	var out []sending
	for _, l := range e.inbox.take() {
		l.touched.Store(false)
		e.agenda.set(l, now) // so that it is among those below
	}
	for _, entry := range slices.Concat(e.agenda.lanes, e.agenda.paced) {
		l := entry.lane
		for _, s := range l.shares.all() {
			if s.FailingFor(now) > 0 { // Close does not wait for a store that is unavailable
				continue
			}
			if r := s.Mode.Drain(now); r != nil {
				out = append(out, sending{lane: l, share: s, request: r})
			}
		}
	}
	lines := e.journal.take()
	e.mu.Unlock()
	e.journal.write(lines)
	if len(out) > 0 {
		e.do(out)
	}
}
