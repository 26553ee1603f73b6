package pulsarthrottle

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A silent consumer never has a message. As the client's zero-queue one it holds a lock in Receive, which Close needs.
type silent struct {
	mu     sync.Mutex
	closed chan struct{}
}

var errClosed = errors.New("closed")

func (s *silent) receive(ctx context.Context) (pulsar.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return nil, errClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *silent) close() {
	time.Sleep(100 * time.Microsecond) // whoever is late comes now
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.closed)
}

// read reads with two loops, as of a consumer that is polled, until the gate is closed.
func read(g *gate, loops *sync.WaitGroup) {
	for range 2 {
		loops.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Microsecond)
				_, _, err := g.next(ctx)
				cancel()
				if errors.Is(err, errClosed) {
					return
				}
			}
		})
	}
}

func returns(t *testing.T, what string, loops *sync.WaitGroup) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		loops.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.Fail(t, what+" hangs")
	}
}

// TestGateMovesAndCloses: Seeks at once, and a Close, in the middle of what others ask for.
func TestGateMovesAndCloses(t *testing.T) {
	for _, zero := range []bool{false, true} {
		for range 300 {
			s := &silent{closed: make(chan struct{})}
			g := &gate{}
			if zero {
				g.zeroQueue = &topic{} // nothing is limited: a permit is always there
			}
			g.open(s.receive)
			var loops, seeks sync.WaitGroup
			read(g, &loops)
			loops.Go(func() { // and one without a deadline
				_, _, err := g.next(context.Background())
				assert.ErrorIs(t, err, errClosed)
			})
			for range 3 {
				seeks.Go(func() { assert.NoError(t, g.move(func() error { return nil })) })
			}
			returns(t, "a Seek", &seeks)
			loops.Go(func() { g.shut(s.close) })
			returns(t, "Close", &loops)
		}
	}
}

// TestGateShutsDespiteASeek: a Seek that never returns, as the client's of a closed consumer, does not keep Close from returning.
func TestGateShutsDespiteASeek(t *testing.T) {
	s := &silent{closed: make(chan struct{})}
	g := &gate{}
	g.open(s.receive)
	hangs := make(chan struct{})
	var seek, loops sync.WaitGroup
	seek.Go(func() { assert.NoError(t, g.move(func() error { <-hangs; return nil })) })
	for !g.turn.Taken() {
		time.Sleep(time.Millisecond)
	}
	read(g, &loops)
	loops.Go(func() { g.shut(s.close) })
	returns(t, "Close", &loops)
	close(hangs)
	returns(t, "the Seek", &seek)
	assert.ErrorIs(t, g.move(nil), errClosed, "none begins after Close")
}
