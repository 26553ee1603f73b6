// Package generation tells what a client has returned before a seek, a rebalance or Close from
// what it returns after.
package generation

import (
	"context"
	"sync/atomic"
)

// A Generation is the time in which each message of a client continues the one before. It is
// done, as a context, when a seek, a rebalance or Close ends it: a message that was received in
// it and not handed over must not be handed over any more.
type Generation struct {
	context.Context
	end      context.CancelFunc
	replaced chan struct{}
}

// End ends g. Until [Sequence.Next] starts the next generation, no message may be handed over.
func (g *Generation) End() { g.end() }

// Replaced returns a channel that is closed when the next generation has started.
func (g *Generation) Replaced() <-chan struct{} { return g.replaced }

// A Sequence is the generations of one client, one after the other. Any number of goroutines may
// use it at once.
type Sequence struct {
	parent  context.Context
	current atomic.Pointer[Generation]
}

// Start starts the first generation. All of them end with ctx.
func (s *Sequence) Start(ctx context.Context) {
	s.parent = ctx
	s.current.Store(s.fresh())
}

func (s *Sequence) fresh() *Generation {
	ctx, end := context.WithCancel(s.parent)
	return &Generation{ctx, end, make(chan struct{})}
}

// Current returns the generation that started last. It costs one atomic load.
func (s *Sequence) Current() *Generation { return s.current.Load() }

// Next ends the current generation and starts another.
func (s *Sequence) Next() {
	old := s.current.Swap(s.fresh())
	old.end()
	close(old.replaced)
}
