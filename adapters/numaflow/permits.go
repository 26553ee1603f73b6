package numaflowthrottle

import (
	"context"
	"slices"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// permits are the permits of one Read. While the user's source delivers as many messages as it is
// asked for, they are also acquired while it reads, since its calls may take their time: at most
// twice as many as it delivered last, since other replicas cannot use what is held here.
type permits struct {
	source *source
	ctx    context.Context // ends with TimeOut
	left   int             // to acquire

	started   bool             // what was acquired ahead is taken
	taken     []dispatch.Grant // for the call under way
	unlimited bool             // no limit applied to those of the last call

	mu      sync.Mutex
	grants  []dispatch.Grant // acquired in the background since
	held    int              // permits of them
	enough  int              // of held
	some    chan struct{}    // holds a value if there are grants; nil: none are acquired
	room    chan struct{}    // holds a value if more may be acquired
	stopped bool
}

// take waits for permits, and returns how many there are; 0: TimeOut is over, or Count is
// reached. The first ones are those that were acquired ahead. supply is source.supply.
func (p *permits) take(supply int) (n int) {
	if !p.started {
		p.started = true
		p.taken, n = p.source.ahead.takeAll(p.left)
		p.left -= n
	}
	if p.some == nil && p.left <= 0 {
		return n
	}
	if sub := p.source.sub; p.some == nil && supply > 0 && sub.Limited() && !sub.Paced() {
		p.some, p.room, p.enough = make(chan struct{}, 1), make(chan struct{}, 1), 2*supply
		go p.acquireInBackground()
	}
	if n > 0 {
		return n
	}
	if p.some != nil {
		for more := true; more && len(p.taken) == 0; { // the value may be of grants already taken
			_, more = <-p.some
			n = p.takeGrants(supply)
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

// takeGrants takes what was acquired in the background, and makes room for more.
func (p *permits) takeGrants(supply int) (n int) {
	p.mu.Lock()
	n, p.held = p.held, 0
	p.taken, p.grants = p.grants, nil
	p.enough = 2 * max(n, supply)
	p.mu.Unlock()
	select {
	case p.room <- struct{}{}:
	default: // it holds a value already
	}
	return n
}

// acquireInBackground acquires what is left, and closes some when it ends.
func (p *permits) acquireInBackground() {
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

// add offers a grant to take. It returns false when the Read is over.
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
	default: // it holds a value already
	}
	return true
}

// limited reports whether a limit applies to the permits that were taken.
func (p *permits) limited() bool { return slices.ContainsFunc(p.taken, dispatch.Grant.Limited) }

// spend settles the permits that were taken. Messages beyond them are charged to the last grant.
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

// stop gives back what was not spent.
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

// acquire acquires up to n permits, until TimeOut is over. A Read whose TimeOut is over already
// gets the permits that are there.
func (s *source) acquire(ctx context.Context, n int) (dispatch.Grant, error) {
	if err := ctx.Err(); err != nil {
		grant, _, ok := s.sub.TryAcquire(n)
		if !ok {
			return grant, err
		}
		return grant, nil
	}
	grant, err := s.sub.Acquire(ctx, n)
	if err != nil && s.limiterClosed(err) {
		<-ctx.Done() // otherwise the data plane would ask again at once
	}
	return grant, err
}

// charged are the IDs that were charged last, so that a datum that the data plane sends again is
// not charged again.
type charged struct {
	ids *lru.Cache[string, struct{}]
}

// maxCharged is how many IDs are remembered.
const maxCharged = 10_000

func newCharged() charged {
	ids, _ := lru.New[string, struct{}](maxCharged) // fails only for a size of 0
	return charged{ids}
}

func (c charged) has(id string) bool { return c.ids.Contains(id) }

// set notes that an ID was charged, or is to be charged again.
func (c charged) set(id string, charged bool) {
	if charged {
		c.ids.Add(id, struct{}{})
	} else {
		c.ids.Remove(id)
	}
}

// size returns the bytes that a message counts as: its value, its keys, and the names and values of
// its headers.
func size(value []byte, keys []string, headers map[string]string) int64 {
	n := len(value)
	for _, k := range keys {
		n += len(k)
	}
	for k, v := range headers {
		n += len(k) + len(v)
	}
	return int64(n)
}
