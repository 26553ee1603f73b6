package quotas_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A meter counts the bytes that the connections of a permit store read and write.
type meter struct{ read, wrote atomic.Int64 }

type meteredConn struct {
	net.Conn
	*meter
}

func (c meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func (c meteredConn) Write(p []byte) (int, error) {
	c.wrote.Add(int64(len(p)))
	return c.Conn.Write(p)
}

// open opens a permit store whose bytes are counted.
func (m *meter) open(t *testing.T, url string) *redispermits.Store {
	store := redispermits.Open(redis.UniversalOptions{
		Addrs: []string{strings.TrimPrefix(url, "redis://")},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return meteredConn{conn, m}, err
		},
	}, 10*time.Second)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return store
}

// perSecond returns the bytes that were read and written, a second, while f runs.
func (m *meter) perSecond(f func()) (read, wrote float64) {
	start, r, w := time.Now(), m.read.Load(), m.wrote.Load()
	f()
	secs := time.Since(start).Seconds()
	return float64(m.read.Load()-r) / secs, float64(m.wrote.Load()-w) / secs
}

// TestTrafficOfRates: of 20,000 quotas, a replica that uses ten reads ten rates. A ratekeeper
// writes those that change.
func TestTrafficOfRates(t *testing.T) {
	const ids, used, active = 20_000, 10, 100
	var lines strings.Builder
	for i := range ids {
		fmt.Fprintf(&lines, "quota tag:team-%d total=%d\n", i, 4096*(1000+i))
	}
	source := new(permitstest.Policies)
	source.Set(throttletest.SetOf(t, lines.String()))
	url := services.RedisServer(t).URL
	var ofReplica, ofKeeper, ofLoad meter
	ctx, stop := context.WithCancel(t.Context())
	keeper := &ratekeeper.Ratekeeper{Policies: source, Permits: ofKeeper.open(t, url), Name: "k"}
	done := make(chan error, 1)
	go func() { done <- keeper.Run(ctx) }()
	defer func() { stop(); require.NoError(t, <-done) }()
	load := ofLoad.open(t, url)
	usage := func(second int) { // costs that change all the time
		u := dispatch.Usage{Replica: "load", Started: map[quota.ID]float64{}}
		b := quota.Report{Backend: "b", Zone: "z", Costs: map[quota.ID]float64{}}
		for i := range ids {
			id := quota.ID(fmt.Sprint("tag:team-", i))
			n := 100.0
			if i < active {
				n += float64(10 * (second % 7))
			}
			u.Started[id], b.Costs[id] = 100, n*4096
		}
		u.Backends = []quota.Report{b}
		text, err := json.Marshal(u)
		require.NoError(t, err)
		require.NoError(t, load.Publish(t.Context(), permits.UsageOf("standalone"), "load", text,
			10*time.Second))
	}
	lim, err := dispatch.Open(t.Context(), dispatch.Config{
		Policies: source, Permits: ofReplica.open(t, url),
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, lim.Close()) }()
	for i := range used {
		_, err := lim.Subscription(orders, "s", dispatch.WithTag(fmt.Sprint("team-", i)))
		require.NoError(t, err)
	}
	second := 0
	loads := func() {
		usage(second)
		second++
		time.Sleep(time.Second)
	}
	first := quota.ID("tag:team-3")
	throttletest.Until(t, "the replica has the rate that the ratekeeper has written", func() bool {
		loads()
		stored, _, err := dispatch.Rates(t.Context(), load, "standalone", []quota.ID{first})
		require.NoError(t, err)
		return stored.Rates[first].Rate > 0 &&
			slices.ContainsFunc(lim.Stats().Subscriptions, func(s dispatch.SubscriptionStats) bool {
				return s.Owner == string(first) && len(s.Limits) == 1 && s.Limits[0].Rate == stored.Rates[first].Rate
			})
	})
	var keeperRead, keeperWrote float64
	read, wrote := ofReplica.perSecond(func() {
		keeperRead, keeperWrote = ofKeeper.perSecond(func() {
			for range 8 {
				loads()
			}
		})
	})
	t.Logf("the replica reads %.0f B/s and writes %.0f B/s", read, wrote)
	t.Logf("the ratekeeper reads %.0f B/s and writes %.0f B/s", keeperRead, keeperWrote)
	assert.Less(t, read+wrote, 20_000.0)
	names, err := load.RowNames(t.Context(), permits.RatesKey("standalone"))
	require.NoError(t, err)
	assert.Len(t, names, ids)
}
