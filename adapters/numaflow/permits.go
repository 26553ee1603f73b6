package numaflowthrottle

import (
	"context"
	"slices"
	"sync"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// permits are those of one Read. While the user's source has as many messages as it is asked for, they come also while it
// reads, for its calls may take their time: twice as many as it had last, at most, for what is held and not used is lost to others.
type permits struct {
	source *source
	ctx    context.Context // ends with TimeOut
	left   int             // to acquire

	begun bool             // what was acquired ahead is taken
	taken []dispatch.Grant // for the call under way
	free  bool             // no limit went by those of the last call

	mu      sync.Mutex
	grants  []dispatch.Grant // that came since
	held    int              // permits of them
	enough  int              // of those
	some    chan struct{}    // one if there are some; closed when no more come. nil: nobody acquires in the background
	room    chan struct{}    // one if there may be room for more
	stopped bool
}

// take waits for permits, and returns how many there are; 0: TimeOut is over, or there are enough. The first ones are those that were
// acquired ahead. had is how many messages the user's source had at a time lately, if it had as many as it was asked for, else 0.
func (p *permits) take(had int) (n int) {
	if !p.begun {
		p.begun = true
		p.taken, n = p.source.ahead.takeAll(p.left)
		p.left -= n
	}
	if p.some == nil && p.left <= 0 {
		return n
	}
	if sub := p.source.sub; p.some == nil && had > 0 && sub.Limited() && !sub.Paced() {
		p.some, p.room, p.enough = make(chan struct{}, 1), make(chan struct{}, 1), 2*had
		go p.acquire()
	}
	if n > 0 {
		return n
	}
	if p.some != nil {
		for more := true; more && len(p.taken) == 0; { // the word may be of some that were taken already
			_, more = <-p.some
			n = p.move(had)
		}
		return n
	}
	grant, err := p.source.acquire(p.ctx, p.left)
	if err != nil {
		return 0
	}
	p.left -= grant.N()
	p.taken = []dispatch.Grant{grant}
	return grant.N()
}

// move takes what has come, and makes room for more.
func (p *permits) move(had int) (n int) {
	p.mu.Lock()
	n, p.held = p.held, 0
	p.taken, p.grants = p.grants, nil
	p.enough = 2 * max(n, had)
	p.mu.Unlock()
	select {
	case p.room <- struct{}{}:
	default: // that is known
	}
	return n
}

// acquire acquires what is left, in the background.
func (p *permits) acquire() {
	defer close(p.some)
	for p.left > 0 {
		p.mu.Lock()
		wanted := min(p.left, p.enough-p.held)
		p.mu.Unlock()
		if wanted <= 0 {
			select {
			case <-p.room:
				continue
			case <-p.ctx.Done():
				return
			}
		}
		grant, err := p.source.acquire(p.ctx, wanted)
		if err != nil {
			return
		}
		p.left -= grant.N()
		if !p.add(grant) {
			return
		}
	}
}

// add has a grant be taken; false: nobody will.
func (p *permits) add(grant dispatch.Grant) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		grant.Done(0, 0)
		return false
	}
	p.grants = append(p.grants, grant)
	p.held += grant.N()
	select {
	case p.some <- struct{}{}:
	default: // somebody is about to look already
	}
	return true
}

// limited says whether a limit goes by what was taken.
func (p *permits) limited() bool { return slices.ContainsFunc(p.taken, dispatch.Grant.Limited) }

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
