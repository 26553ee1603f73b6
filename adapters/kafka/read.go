package kafkathrottle

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/adapters/internal/generation"
)

// ReadMessage is FetchMessage and, with a group, CommitMessages. If ctx ends before the commit
// does, the message and its permit are kept, and the commit goes on: the next ReadMessage returns
// the message when it is committed, the next FetchMessage at once. It is also kept if the commit
// fails: the next ReadMessage commits again.
func (r *Reader) ReadMessage(ctx context.Context) (kafka.Message, error) {
	if r.lim == nil {
		return r.Reader.ReadMessage(ctx)
	}
	read := r.unread.next(r.receiver.Closing())
	if read == nil {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return kafka.Message{}, fmt.Errorf("fetching message: %w", err)
		}
		if !r.group {
			return m, nil
		}
		read = &uncommitted{message: m, generation: r.receiver.Current()}
	}
	if err := r.commitRead(ctx, read); err != nil {
		return kafka.Message{}, fmt.Errorf("committing message: %w", err)
	}
	return read.message, nil
}

// commitRead commits a message that ReadMessage returns then. If that fails, the message is kept.
func (r *Reader) commitRead(ctx context.Context, m *uncommitted) (err error) {
	if m.commit != nil {
		if err = m.commit.await(ctx, m.generation); err == nil {
			return nil
		}
	}
	// After a rebalance, the partition's offset may be another consumer's to commit. If a commit
	// without an answer has reached the broker, nobody else reads the message.
	if m.kept && m.generation.Err() != nil && r.receiver.Closing().Err() == nil {
		return nil
	}
	if m.commit == nil || m.commit.ended() {
		if err = r.CommitMessages(ctx, m.message); err == nil {
			return nil
		}
		m.commit = nil
		if ctx.Err() != nil {
			m.commit = r.unread.begin(func() error {
				return r.CommitMessages(context.WithoutCancel(ctx), m.message) // ends with Close
			})
		}
	}
	m.kept = true
	r.unread.add(m)
	return err
}

// An uncommitted message has been fetched and has its permit.
type uncommitted struct {
	message    kafka.Message
	generation *generation.Generation // in which it was fetched, or a later one
	kept       bool                   // since ReadMessage could not return it
	commit     *commit                // that goes on without a call; nil: there is none
}

// A commit goes on after the call that began it.
type commit struct {
	done chan struct{}
	err  error // when done is closed
}

func (c *commit) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// await returns the commit's error, or that of ctx or g if it ends first.
func (c *commit) await(ctx context.Context, g *generation.Generation) error {
	select {
	case <-c.done:
		return c.err
	case <-g.Done():
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unread are messages that ReadMessage could not return, in the order of its calls.
type unread struct {
	some atomic.Bool

	mu       sync.Mutex // guards the fields below
	messages []*uncommitted
	closed   bool
	commits  sync.WaitGroup
}

// begin begins a commit that goes on without a call; nil after close.
func (u *unread) begin(do func() error) *commit {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	c := &commit{done: make(chan struct{})}
	u.commits.Go(func() {
		c.err = do()
		close(c.done)
	})
	return c
}

// close waits for the commits that go on. No other begins.
func (u *unread) close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.commits.Wait()
}

func (u *unread) add(m *uncommitted) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.messages = append(u.messages, m)
	u.some.Store(true)
}

// next removes and returns the first message; nil if there is none, or once closing has ended. It
// is inlined: as a rule there is none.
func (u *unread) next(closing context.Context) *uncommitted {
	if !u.some.Load() {
		return nil
	}
	return u.take(closing)
}

func (u *unread) take(closing context.Context) *uncommitted {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.messages) == 0 || closing.Err() != nil {
		return nil
	}
	m := u.messages[0]
	u.messages = u.messages[1:]
	u.some.Store(len(u.messages) > 0)
	return m
}

// size returns the bytes that a message counts as: its key, its value, and the keys and values of
// its headers. A tombstone has no value and counts as the rest; it needs a permit like any message.
func size(m *kafka.Message) int64 {
	n := len(m.Key) + len(m.Value)
	for i := range m.Headers {
		n += len(m.Headers[i].Key) + len(m.Headers[i].Value)
	}
	return int64(n)
}
