package franzthrottle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestASlowCallerStarvesNoTopic: the permits of a topic come while the caller works on records of
// another, of which there are always some, and are too old when it polls again. The topic gets its
// turn all the same, also after the records that were fetched first.
func TestASlowCallerStarvesNoTopic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit policy.Policy
		max   int
	}{
		"fair": {perSecond(10), 0}, "fair, ten at a time": {perSecond(10), 10},
		"strict": {strictly(10), 0}, "strict, ten at a time": {strictly(10), 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const polls = 60
			brokers := broker(t, 1, "orders", "free")
			for range 30 { // records of their own batches, of which a fetch brings a few
				fill(t, brokers, "orders", 1, 1, 10)
			}
			lim := throttletest.Open(t, policy.Policy{})
			lim.Add(orders, c.limit)
			cl := open(t, lim, brokers, kgo.ConsumeTopics("orders", "free"), kgo.FetchMaxPartitionBytes(700))
			n := poll(t, cl, c.max).NumRecords()
			fill(t, brokers, "free", 1, 2000, 10)
			for i := 0; i < polls && n < polls/4; i++ {
				fill(t, brokers, "free", 1, 1, 10)
				time.Sleep(300 * time.Millisecond) // for the work
				for _, r := range poll(t, cl, c.max).Records() {
					if r.Topic == "orders" {
						n++
					}
				}
			}
			require.GreaterOrEqual(t, n, polls/4)
		})
	}
}
