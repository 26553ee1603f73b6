package numaflowthrottle

import (
	"context"
	"sync"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// permits are those of one Read. While the user's source has as many messages as it is asked for, they come also while it
// reads: its calls may take their time. One that may have nothing holds no more of them than it was asked for.
type permits struct {
	source *source
	ctx    context.Context // ends with TimeOut
	left   int             // to acquire

	taken []dispatch.Grant // for the call under way

	mu      sync.Mutex
	grants  []dispatch.Grant // that came since
	some    chan struct{}    // one if there are some; closed when no more come. nil: nobody acquires in the background
	stopped bool
}

// take waits for permits, and returns how many there are; 0: TimeOut is over, or there are enough.
func (p *permits) take(background bool) (n int) {
	if p.some == nil && p.left <= 0 {
		return 0
	}
	if background && p.some == nil {
		p.some = make(chan struct{}, 1)
		go p.acquire()
	}
	if p.some != nil {
		for more := true; more && len(p.taken) == 0; { // the word may be of some that were taken already
			_, more = <-p.some
			p.mu.Lock()
			p.taken, p.grants = p.grants, nil
			p.mu.Unlock()
		}
	} else if grant, err := p.source.acquire(p.ctx, p.left); err == nil {
		p.left -= grant.N()
		p.taken = []dispatch.Grant{grant}
	}
	for _, g := range p.taken {
		n += g.N()
	}
	return n
}

// acquire acquires what is left, in the background.
func (p *permits) acquire() {
	defer close(p.some)
	for p.left > 0 {
		grant, err := p.source.acquire(p.ctx, p.left)
		if err != nil {
			return
		}
		p.left -= grant.N()
		p.mu.Lock()
		if p.stopped {
			grant.Done(0, 0)
			p.mu.Unlock()
			return
		}
		p.grants = append(p.grants, grant)
		p.mu.Unlock()
		select {
		case p.some <- struct{}{}:
		default: // somebody is about to look already
		}
	}
}

// spend settles what was taken; messages beyond it are charged to the last grant.
func (p *permits) spend(messages int, bytes int64) {
	for i := range p.taken {
		n := min(messages, p.taken[i].N())
		if i == len(p.taken)-1 {
			n = messages
		}
		share := bytes
		if messages > 0 {
			share = bytes * int64(n) / int64(messages)
		}
		p.taken[i].Done(n, share)
		messages, bytes = messages-n, bytes-share
	}
	p.taken = nil
}

// stop gives back what was not taken.
func (p *permits) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for i := range p.grants {
		p.grants[i].Done(0, 0)
	}
	p.grants = nil
	for i := range p.taken { // TimeOut was over
		p.taken[i].Done(0, 0)
	}
}

// acquire acquires up to max permits, until TimeOut is over; who has no time at all gets what is there.
func (s *source) acquire(ctx context.Context, max int) (dispatch.Grant, error) {
	if err := ctx.Err(); err != nil {
		grant, _, ok := s.sub.TryAcquire(max)
		if !ok {
			return grant, err
		}
		return grant, nil
	}
	grant, err := s.sub.Acquire(ctx, max)
	if err != nil && s.complain(err) {
		<-ctx.Done() // else the data plane asks again at once
	}
	return grant, err
}
