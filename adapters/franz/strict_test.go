package franzthrottle_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	franzthrottle "github.com/dispatchthrottle/throttle/adapters/franz"
	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestShortPollsGetStrictSlots, though the caller works between them for longer than a slot can be
// used, and though other topics always have records.
func TestShortPollsGetStrictSlots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rate     int64
		deadline time.Duration
		busy     bool // another topic has records for each poll
	}{
		"5/s, 1 ms":           {5, time.Millisecond, false},
		"5/s, 1 ms, busy":     {5, time.Millisecond, true},
		"5/s, 1 min, busy":    {5, time.Minute, true},
		"5/s, no wait, busy":  {5, 0, true},
		"20/s, 1 ms":          {20, time.Millisecond, false},
		"20/s, 1 min, busy":   {20, time.Minute, true},
		"20/s, no wait, busy": {20, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers := broker(t, 1, "orders", "free")
			fill(t, brokers, "orders", 1, 100, 10)
			lim := throttletest.Open(t, policy.Policy{})
			lim.Add(orders, strictly(c.rate))
			cl := open(t, lim, brokers, kgo.ConsumeTopics("orders", "free"))
			poll(t, cl, 0)
			const polls = 60
			n := 0
			for i := 0; i < polls && n < polls/4; i++ {
				time.Sleep(100 * time.Millisecond) // for the work
				if c.busy {
					adaptertest.Write(t, brokers, "free", 0, []string{"x"})
				}
				for _, r := range pollFor(t, cl, c.deadline).Records() {
					if r.Topic == "orders" {
						n++
					}
				}
			}
			require.Equal(t, polls/4, n)
		})
	}
}

// pollFor polls with a deadline; 0 = without a context.
func pollFor(t *testing.T, c *franzthrottle.Client, deadline time.Duration) kgo.Fetches {
	var ctx context.Context
	if deadline > 0 {
		timed, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		ctx = timed
	}
	return c.PollFetches(ctx)
}
