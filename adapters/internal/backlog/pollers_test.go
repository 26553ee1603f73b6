package backlog_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/backlog"
)

// A cluster records its polls. Each takes some time, even when its context has ended.
type cluster struct {
	polls  [][]string
	takes  time.Duration
	busy   atomic.Bool
	closed bool
}

func (c *cluster) Poll(_ context.Context, members []string) {
	c.busy.Store(true)
	time.Sleep(c.takes)
	c.polls = append(c.polls, members)
	c.busy.Store(false)
}

func (c *cluster) Close() { c.closed = true }

func TestMembersOfAClusterShareAPoller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pollers backlog.Pollers[string, string]
		var opened []*cluster
		open := func() backlog.Poller[string] {
			c := &cluster{}
			opened = append(opened, c)
			return c
		}
		leaveA := pollers.Join("here", "a", open)
		synctest.Wait()
		leaveB := pollers.Join("here", "b", open)
		leaveC := pollers.Join("there", "c", open)
		time.Sleep(backlog.Interval + time.Millisecond)
		leaveA()
		time.Sleep(backlog.Interval)
		synctest.Wait()
		require.Len(t, opened, 2)
		require.Equal(t, [][]string{{"a"}, {"a", "b"}, {"b"}}, opened[0].polls)
		require.Equal(t, [][]string{{"c"}, {"c"}, {"c"}}, opened[1].polls)

		leaveB()
		require.True(t, opened[0].closed)
		require.False(t, opened[1].closed)
		leaveB = pollers.Join("here", "b", open)
		require.Len(t, opened, 3, "the one that ended is not used again")
		leaveB()
		leaveC()
	})
}

// With the last member the Poller has ended, even if it was in the middle of a poll.
func TestTheLastLeaveWaitsForThePoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pollers backlog.Pollers[string, string]
		c := &cluster{takes: 300 * time.Millisecond}
		leave := pollers.Join("here", "a", func() backlog.Poller[string] { return c })
		synctest.Wait()
		require.True(t, c.busy.Load())
		leave()
		require.False(t, c.busy.Load())
		require.True(t, c.closed)
		require.Len(t, c.polls, 1)
	})
}
