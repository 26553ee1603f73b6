package chaos

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// An effect is what a fault must do: a fault without it shows nothing. It is called before the
// fault; the check that it returns, after the recovery.
type effect func(t *testing.T, f *fleet, s *target) (check func())

// fails: requests fail.
func fails(t *testing.T, f *fleet, _ *target) func() {
	before := f.failed()
	return func() { assert.Greater(t, f.failed(), before, "failed requests") }
}

// loses: the state of the fair limit is lost, or an old one has come back, which replicas replace.
func loses(t *testing.T, _ *fleet, s *target) func() {
	before := s.incarnation(t)
	return func() { assert.NotEqual(t, before, s.incarnation(t), "incarnation of the state") }
}

// keeps: the state of the fair limit is not lost.
func keeps(t *testing.T, _ *fleet, s *target) func() {
	before := s.incarnation(t)
	return func() { assert.Equal(t, before, s.incarnation(t), "incarnation of the state") }
}

// counts: the servers' counters, as INFO calls them, add up to n more at least.
func counts(n int, names ...string) effect {
	return func(t *testing.T, _ *fleet, s *target) func() {
		before := s.count(t, names)
		return func() { assert.GreaterOrEqual(t, s.count(t, names)-before, n, names) }
	}
}

// answers: the server answers with that error.
func answers(code string) effect { return counts(1, "errorstat_"+code) }

// delays: of the requests in the first six seconds, that part takes that long at least.
func delays(part float64, by time.Duration) effect {
	return func(t *testing.T, _ *fleet, s *target) func() {
		store := s.store(t)
		var took []time.Duration
		var requests sync.WaitGroup
		requests.Go(func() {
			for end := time.Now().Add(2 * while); time.Now().Before(end); {
				start := time.Now()
				_, _, _ = store.State(t.Context(), modes[0].key()) // one that fails counts too
				took = append(took, time.Since(start))
				time.Sleep(time.Millisecond)
			}
		})
		return func() {
			requests.Wait()
			slices.Sort(took)
			assert.GreaterOrEqual(t, took[int((1-part)*float64(len(took)))], by, "time of a request")
		}
	}
}

// fast: the server's clock is fast by d.
func fast(d time.Duration) effect {
	return func(t *testing.T, _ *fleet, s *target) func() {
		return func() {
			client := admin(s)
			defer func() { _ = client.Close() }()
			now, err := client.Time(t.Context()).Result()
			require.NoError(t, err)
			assert.WithinDuration(t, time.Now().Add(d), now, time.Minute, "the server's clock")
		}
	}
}

// store returns the permit store as the fleet sees it.
func (s *target) store(t *testing.T) dispatch.PermitStore {
	t.Helper()
	store, err := throttle.OpenPermits(s.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() }) // has only read
	return store
}

// incarnation is that of the fair limit's state. A strict limit starts a new one at each restart.
func (s *target) incarnation(t *testing.T) (inc int64) {
	t.Helper()
	store := s.store(t)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		state, _, err := store.State(t.Context(), modes[0].key())
		require.NoError(c, err)
		require.NotZero(c, state.Inc)
		inc = state.Inc
	}, 5*time.Second, 50*time.Millisecond)
	return inc
}

// count is the sum of counters of all servers.
func (s *target) count(t *testing.T, names []string) (n int) {
	t.Helper()
	servers := []*services.RedisProcess{s.redis}
	if s.shards != nil {
		servers = s.shards.Nodes
	}
	for _, server := range servers {
		client := admin(&target{redis: server})
		info, err := client.Info(t.Context(), "all").Result()
		require.NoError(t, err)
		require.NoError(t, client.Close())
		for line := range strings.Lines(info) { // name:12, or name:count=12
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if slices.Contains(names, name) {
				more, err := strconv.Atoi(strings.TrimPrefix(value, "count="))
				require.NoError(t, err)
				n += more
			}
		}
	}
	return n
}
