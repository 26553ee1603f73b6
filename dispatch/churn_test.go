package dispatch_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// churned are policies for topics of all sharing modes, with busy limits and quotas.
const churned = `cluster messageRate=100 byteRate=100000
quota tenant:acme total=40960000
pattern:/fair- weight=2
pattern:/strict- sharing.mode=strict
pattern:/split- sharing.mode=split
pattern:/groups- sharing.mode=groups sharing.groups=eu,us
pattern:/ramp- ramp.over=10s ramp.from=10
pattern:/debt- byteRate=100`

// TestTopicsThatComeAndGo: topics at 100,000 an hour leave neither memory nor records behind, once
// these have expired, after an hour or two.
func TestTopicsThatComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	rounds, seconds := 1, 100
	if permitstest.Long() {
		rounds, seconds = 2, 3600
	}
	synctest.Test(t, func(t *testing.T) {
		c := newChurn(t, memory.New())
		c.run(10)
		c.wait(3 * time.Hour)
		before := heap()
		for range rounds {
			c.run(seconds)
			c.wait(3 * time.Hour)
			t.Logf("after %d topics: %+.0f KiB", c.topics, (heap()-before)/1024)
			assert.Less(t, heap()-before, float64(384<<10)) // 660 KiB if steps keep their lanes
		}
		c.close()
	})
}

// TestKeysOfTopicsThatComeAndGo: they leave no keys in Redis.
func TestKeysOfTopicsThatComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		permitstest.AddStruct(t, server)
		server.ClockTTL(true)
		store := redispermits.Open(redis.UniversalOptions{
			Addrs:  []string{"in memory"},
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		}, permitstest.Timeout)
		c := newChurn(t, store)
		used := map[string]bool{}
		for range 10 {
			c.run(1)
			for _, key := range server.Keys() {
				used[key] = true
			}
		}
		c.wait(3 * time.Hour)
		left := server.Keys()
		t.Logf("%d keys for %d topics, %d left", len(used), c.topics, len(left))
		assert.Greater(t, len(used), c.topics)
		for _, key := range left {
			assert.Contains(t, key, "default/last", "the others")
		}
		c.close()
		require.NoError(t, store.Close())
	})
}

// A churn is a Limiter whose topics come and go.
type churn struct {
	*testing.T
	lim    *dispatch.Limiter
	broker *dispatch.Backend
	topics int // so far
}

func newChurn(t *testing.T, store dispatch.PermitStore) *churn {
	source := new(permitstest.Policies)
	source.Set(throttletest.SetOf(t, churned))
	lim, err := dispatch.Open(t.Context(), dispatch.Config{
		Policies: source, Permits: store, Group: "eu",
	})
	require.NoError(t, err)
	broker, err := lim.Backend("broker", "a")
	require.NoError(t, err)
	return &churn{T: t, lim: lim, broker: broker}
}

// run opens 28 topics a second.
func (c *churn) run(seconds int) {
	var wg sync.WaitGroup
	for range seconds {
		for range 28 {
			i := c.topics
			c.topics++
			wg.Go(func() { c.comeAndGo(i) })
		}
		time.Sleep(time.Second)
	}
	wg.Wait()
}

// wait waits until all records have expired, and makes the permit store notice it.
func (c *churn) wait(d time.Duration) {
	time.Sleep(d)
	sub, err := c.lim.Subscription("kafka://public/default/last", "s")
	require.NoError(c, err)
	g, err := sub.Acquire(c.Context(), 1)
	require.NoError(c, err)
	g.Done(1, 1)
	require.NoError(c, sub.Close())
	time.Sleep(2 * time.Minute)
}

func (c *churn) close() { require.NoError(c, c.lim.Close()) }

// comeAndGo uses a topic for a second.
func (c *churn) comeAndGo(i int) {
	kinds := []string{"fair", "strict", "split", "groups", "ramp", "debt", "busy"}
	tenant := []string{"public", "acme"}[i/7%2]
	kind := kinds[i%len(kinds)]
	ctx, cancel := context.WithTimeout(c.Context(), 5*time.Second)
	defer cancel()
	sub, err := c.lim.Subscription(
		fmt.Sprintf("kafka://%s/default/%s-%d", tenant, kind, i), fmt.Sprint("s-", i))
	if !assert.NoError(c, err) {
		return
	}
	if g, err := sub.Acquire(ctx, 1); err == nil {
		size := int64(100)
		if kind == "debt" {
			size = 500
		}
		g.Done(1, size)
		c.broker.Read(sub, size)
	}
	sub.ReportBacklog(int64(i % 1000))
	if kind == "busy" {
		sub.ReportOutcome(dispatch.OutcomeBusy, time.Second)
	}
	time.Sleep(time.Second)
	assert.NoError(c, sub.Close())
}
