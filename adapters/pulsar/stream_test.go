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

	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A silent consumer never has a message. Like the client's zero-queue consumer it holds a lock in
// Receive, which Close needs.
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
	time.Sleep(100 * time.Microsecond) // for callers that are late
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.closed)
}

// read calls next in two loops with short deadlines, until the stream is closed.
func read(st *stream, loops *sync.WaitGroup) {
	for range 2 {
		loops.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Microsecond)
				_, _, err := st.next(ctx)
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
	case <-time.After(throttletest.Patience):
		require.Fail(t, what+" hangs")
	}
}

// Concurrent Seeks, and a Close, return while others receive.
func TestStreamSeeksAndCloses(t *testing.T) {
	for _, zero := range []bool{false, true} {
		for range 300 {
			s := &silent{closed: make(chan struct{})}
			st := &stream{}
			if zero {
				st.zeroQueue = &topic{} // nothing is limited: a permit is always there
			}
			st.open(s.receive)
			var loops, seeks sync.WaitGroup
			read(st, &loops)
			loops.Go(func() { // and one without a deadline
				_, _, err := st.next(context.Background())
				assert.ErrorIs(t, err, errClosed)
			})
			for range 3 {
				seeks.Go(func() { assert.NoError(t, st.seek(func() error { return nil })) })
			}
			returns(t, "a Seek", &seeks)
			loops.Go(func() { st.closeClient(s.close) })
			returns(t, "Close", &loops)
		}
	}
}

// Close returns even if a Seek never does, like that of a client's closed consumer.
func TestStreamClosesDespiteASeek(t *testing.T) {
	s := &silent{closed: make(chan struct{})}
	st := &stream{}
	st.open(s.receive)
	hangs := make(chan struct{})
	var seek, loops sync.WaitGroup
	seek.Go(func() { assert.NoError(t, st.seek(func() error { <-hangs; return nil })) })
	for !st.Receiving() {
		time.Sleep(time.Millisecond)
	}
	read(st, &loops)
	loops.Go(func() { st.closeClient(s.close) })
	returns(t, "Close", &loops)
	close(hangs)
	returns(t, "the Seek", &seek)
	assert.ErrorIs(t, st.seek(nil), errClosed, "none begins after Close")
}
