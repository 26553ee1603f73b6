// Package recent keeps the grants of the messages that were handed over last, so that the permits
// of those that turn out not to be used can go back.
package recent

import (
	"sync"
	"sync/atomic"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Kept is how many messages are kept. Permits can go back only while they are as old as two
// batches, and a message is skipped soon after it was handed over.
const Kept = 1024

// Grants are the grants of the last messages, by what names a message. The zero value is empty. Any
// number of goroutines may use it at once.
type Grants[K comparable] struct {
	limited atomic.Int64 // how many of the grants are limited

	mu     sync.Mutex
	grants []granted[K] // a ring once it has Kept
	next   int          // where the next one goes then
}

type granted[K comparable] struct {
	message K
	grant   dispatch.Grant // of its last delivery
}

// Wants reports whether Add must be called with a grant: it is limited, or the message may have
// been delivered before with one that was. It costs one atomic load.
func (g *Grants[K]) Wants(grant dispatch.Grant) bool {
	return grant.Limited() || g.limited.Load() > 0
}

// Add keeps the grant of a message that is handed over now. The zero Grant is for a message whose
// permits cannot go back, or go back in another way.
func (g *Grants[K]) Add(message K, grant dispatch.Grant) {
	if !g.Wants(grant) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	added := granted[K]{message, grant}
	g.count(grant, 1)
	if len(g.grants) < Kept {
		g.grants = append(g.grants, added)
		return
	}
	g.count(g.grants[g.next].grant, -1)
	g.grants[g.next] = added
	g.next = (g.next + 1) % Kept
}

func (g *Grants[K]) count(grant dispatch.Grant, n int64) {
	if grant.Limited() {
		g.limited.Add(n)
	}
}

// Skip gives back the permits of the last delivery of a message, which was not used, as far as that
// is possible. A second call for it does nothing.
func (g *Grants[K]) Skip(message K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.grants)
	for i := range n { // the newest first
		if last := &g.grants[(g.next+n-1-i)%n]; last.message == message {
			g.count(last.grant, -1)
			last.grant.Done(0, 0)
			return
		}
	}
}
