// Package franzthrottle applies the limits of a dispatch.Limiter to a franz-go client.
//
//	cl, err := franzthrottle.New(lim, []kgo.Opt{
//		kgo.SeedBrokers(brokers...), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"),
//		kgo.AutoCommitMarks(),
//	})
//	fetches := cl.PollFetches(ctx) // the records that have permits
//	cl.MarkCommitRecords(fetches.Records()...)
//
// A poll takes what the client has fetched, acquires permits for it, of each record's own topic and
// for its exact size, and returns the records that have got theirs: the bytes of the key, the
// value, and the keys and values of the headers. The others are kept, in order, for the next polls,
// and are not committed. While more of a topic is kept than was returned in the last 250 ms, no
// more of it is fetched.
package franzthrottle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/adapters/internal/ctxmutex"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// A Client is a kgo.Client whose records wait for their permits. It has the methods of a
// kgo.Client, which behave as kgo documents unless noted here. Any number of goroutines may use it
// at once; those that poll are served one after the other.
type Client struct {
	*kgo.Client

	lim      *dispatch.Limiter // nil limits nothing
	options  options
	settings settings
	given    []kgo.Opt
	leave    func() // ends the polls for backlogs
	once     sync.Once

	closing  context.Context // ends with Close
	setClose context.CancelFunc

	polling  ctxmutex.Mutex // held by the poll that is served
	polledAt time.Time      // when the last poll ended; guarded by polling
	filling  sync.Mutex     // held while records come from kgo or leave the shelf for a poll
	seek     ctxmutex.Mutex // held by a call that moves kgo's place; see alone
	seeking  atomic.Int32   // such calls, those that wait included
	called   atomic.Bool    // a callback of kgo runs, while which kgo hands out no records

	shelf shelf
}

// New opens a kgo.Client whose records wait for permits of lim. With a nil lim they do not wait.
// The error is that of kgo.NewClient, or says why the options cannot be used:
//
//   - Plain and greedy auto-commit commit what was polled, at times of their own. Want
//     kgo.AutoCommitMarks, and [kgo.Client.MarkCommitRecords] for what is done, or
//     kgo.DisableAutoCommit.
//   - A share group acknowledges records one by one, within a time. It is not supported.
//   - A transactional id with a group wants [NewSession].
//
// In the callbacks of a group, commit with the context that they get: with it, the kgo.Client
// commits no record that was not returned. A [kgo.PreCommitFnContext] takes the place of what
// ensures that: with one, commit with the Client instead. While a callback runs, polls wait for it,
// whether the user blocks rebalances or not: a callback must not wait for a poll to end.
func New(lim *dispatch.Limiter, opts []kgo.Opt, more ...Option) (*Client, error) {
	if lim == nil {
		inner, err := kgo.NewClient(opts...)
		if err != nil {
			return nil, err
		}
		return &Client{Client: inner}, nil
	}
	c, opts, err := open(lim, opts, more)
	if err == nil && c.settings.transactional && c.settings.group != "" {
		err = errors.New("franzthrottle: a transactional id with a group: want NewSession, " +
			"or the offsets in transactions would be those of records that were not returned")
	}
	if err != nil {
		return nil, err
	}
	inner, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	c.start(inner)
	return c, nil
}

// open returns a Client without its kgo.Client, and the options to open that with.
func open(lim *dispatch.Limiter, opts []kgo.Opt, more []Option) (*Client, []kgo.Opt, error) {
	s, err := settingsOf(opts)
	if err != nil {
		return nil, nil, err
	}
	c := &Client{lim: lim, settings: s, options: newOptions(s.group, more), given: opts}
	c.closing, c.setClose = context.WithCancel(context.Background())
	c.polling.Init()
	c.seek.Init()
	c.shelf.init()
	return c, append(slices.Clip(opts), c.own()...), nil
}

// own are the options that a Client opens with, behind the user's.
func (c *Client) own() (opts []kgo.Opt) {
	if c.settings.several {
		opts = append(opts, kgo.FetchMaxWait(min(c.settings.maxWait, aheadFor)))
	}
	if c.settings.group != "" {
		opts = append(opts, c.callbacks()...)
	}
	return opts
}

// start gives an opened Client its kgo.Client.
func (c *Client) start(inner *kgo.Client) {
	c.Client = inner
	c.leave = joinPollers(c)
}

// PollFetches returns the records that have permits, as kgo.Client.PollFetches does: all of those
// that are there.
func (c *Client) PollFetches(ctx context.Context) kgo.Fetches { return c.PollRecords(ctx, 0) }

// PollRecords returns up to max of the records that have permits, or all of those that are there if
// max is 0 or less. It waits until there is one, or until ctx ends; with a nil ctx it does not
// wait. A poll returns as soon as one topic has records with permits: a topic that waits does not
// hold up another. But if permits of a topic came and went while the caller worked, the poll first
// waits for its next ones: at most as long as the caller worked, and at most 250 ms, also with a
// nil ctx. If ctx ends first, the records are kept for the next poll. If the Limiter has been
// closed, the fetches have an error that wraps dispatch.ErrClosed.
func (c *Client) PollRecords(ctx context.Context, max int) kgo.Fetches {
	if c.lim == nil {
		return c.Client.PollRecords(ctx, max)
	}
	if !c.polling.TryLock() {
		if ctx == nil {
			return nil
		}
		if err := c.polling.Lock(ctx, c.closing); err != nil {
			return errorFetches(err)
		}
	}
	defer c.polling.Unlock()
	return c.poll(ctx, max)
}

func errorFetches(err error) kgo.Fetches {
	if errors.Is(err, ctxmutex.ErrClosing) {
		err = kgo.ErrClientClosed
	}
	return kgo.NewErrFetch(err)
}

// AllowRebalance is kgo's.
func (c *Client) AllowRebalance() {
	if c.lim != nil && !c.settings.blocks { // kgo blocks rebalances for a poll, and not for the user
		return
	}
	c.shelf.returned.Store(false)
	c.Client.AllowRebalance()
}

// Opts returns the options that the Client was opened with.
func (c *Client) Opts() []kgo.Opt {
	if c.lim == nil {
		return c.Client.Opts()
	}
	return c.given
}

// PauseFetchTopics is kgo's. Records of these topics that are kept stay so until they are resumed.
func (c *Client) PauseFetchTopics(topics ...string) []string {
	if c.lim == nil {
		return c.Client.PauseFetchTopics(topics...)
	}
	return c.shelf.pauseTopics(c.Client, topics)
}

// ResumeFetchTopics is kgo's.
func (c *Client) ResumeFetchTopics(topics ...string) {
	if c.lim == nil {
		c.Client.ResumeFetchTopics(topics...)
		return
	}
	c.shelf.resumeTopics(c.Client, topics)
}

// PauseFetchPartitions is kgo's. Records of these partitions that are kept stay so until they are
// resumed.
func (c *Client) PauseFetchPartitions(partitions map[string][]int32) map[string][]int32 {
	if c.lim == nil {
		return c.Client.PauseFetchPartitions(partitions)
	}
	return c.shelf.pausePartitions(func() map[string][]int32 { return c.Client.PauseFetchPartitions(partitions) })
}

// ResumeFetchPartitions is kgo's.
func (c *Client) ResumeFetchPartitions(partitions map[string][]int32) {
	if c.lim == nil {
		c.Client.ResumeFetchPartitions(partitions)
		return
	}
	c.shelf.pausePartitions(func() map[string][]int32 {
		c.Client.ResumeFetchPartitions(partitions)
		return c.Client.PauseFetchPartitions(nil)
	})
}

// Close ends the calls that wait, and closes the kgo.Client; a rebalance is allowed. Records that
// are kept are dropped; they were never committed. Close the Client before its Limiter.
func (c *Client) Close() {
	if c.lim == nil {
		c.Client.Close()
		return
	}
	c.once.Do(func() {
		c.setClose()
		c.shelf.wake()
		c.leave()
		// A poll that ends blocks rebalances: Close comes after it.
		_ = c.polling.Lock(context.Background(), context.Background())
		c.Client.CloseAllowingRebalance()
		c.shelf.abandonAll()
		c.shelf.waiters.Wait()
		c.shelf.close()
	})
}

// CloseAllowingRebalance is Close.
func (c *Client) CloseAllowingRebalance() {
	if c.lim == nil {
		c.Client.CloseAllowingRebalance()
		return
	}
	c.Close()
}

// topicError says why records of a topic cannot be handed over.
func topicError(name string, err error) error {
	return fmt.Errorf("franzthrottle: topic %s: %w", name, err)
}
