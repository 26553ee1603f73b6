// Package recent keeps the grants of the messages that were handed over last, so that the permits
// of those that turn out not to be used can go back.
package recent

import (
	"sync"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Kept is how many messages are kept. Permits can go back only while they are as old as two
// batches, and a message is skipped soon after it was handed over.
const Kept = 1024

// Grants are the grants of the last messages, by what names a message. The zero value is empty. Any
// number of goroutines may use it at once.
type Grants[K comparable] struct {
	mu     sync.Mutex
	grants []granted[K] // a ring once it has Kept
	next   int          // where the next one goes then
}

type granted[K comparable] struct {
	message K
	grant   dispatch.Grant
}

// Add keeps the grant of a message that is handed over now, unless nothing limits it.
func (g *Grants[K]) Add(message K, grant dispatch.Grant) {
	if !grant.Limited() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.grants) < Kept {
		g.grants = append(g.grants, granted[K]{message, grant})
		return
	}
	g.grants[g.next] = granted[K]{message, grant}
	g.next = (g.next + 1) % Kept
}

// Skip gives back the permits of a message that was not used, as far as that is possible. A second
// call for it does nothing.
func (g *Grants[K]) Skip(message K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.grants)
	for i := range n { // the newest first
		if one := &g.grants[(g.next+n-1-i)%n]; one.message == message && one.grant.Limited() {
			one.grant.Done(0, 0)
			return
		}
	}
}
