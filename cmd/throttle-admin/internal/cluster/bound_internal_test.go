package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// TestBound: the points of all topics take at most 63 MiB. Topics on view are the last to lose
// theirs, and of the others those that use the least part of their limit are the first.
func TestBound(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	const topics, viewed = 80_000, 400
	name := func(i int) string { return fmt.Sprintf("kafka://public/default/t%05d", i) }
	st, now := NewState(), time.Unix(1_800_000_000, 0)
	for n := range int64(4) {
		r := Record{Replica: "r", Time: 1000 * (n + 1)}
		for i := range topics {
			r.Subscriptions = append(r.Subscriptions, subscription{
				Topic: name(i), Subscription: "s", Backlog: -1,
				Limits: []limit{{Key: name(i), Reason: dispatch.ReasonMessages, Rate: 1000, Granted: n * int64(topics-i)}},
			})
		}
		st.Add(r, now)
		for range 10 { // each topic has a new row at one of them
			st.Tick(now, nil)
		}
		now = now.Add(keepEvery)
	}
	st.keep(now)
	all := func() (bytes, kept int) {
		for _, topic := range st.topics {
			if bytes += topic.tracks.bytes(); topic.tracks != (tracks{}) {
				kept++
			}
		}
		return bytes, kept
	}
	bytes, kept := all()
	assert.Equal(t, bytes, st.memory)
	assert.LessOrEqual(t, bytes, maxMemory)
	assert.Greater(t, bytes, maxMemory-10_000, "none is dropped without need")
	assert.Less(t, kept, topics)
	for i := range topics {
		has := st.topics[name(i)].tracks != tracks{}
		require.Equal(t, i < kept, has, "the busiest keep theirs: %d of %d", i, kept)
	}

	// Somebody looks at those that have lost theirs.
	for i := topics - viewed; i < topics; i++ {
		st.Points(name(i), 0, now)
	}
	for range 700 { // seconds
		now = now.Add(time.Second)
		for i := topics - viewed; i < topics; i++ {
			topic := st.topics[name(i)]
			topic.viewed = now
			topic.tracks.add(&topic.row, now, 0)
		}
	}
	st.keep(now)
	bytes, _ = all()
	assert.Equal(t, bytes, st.memory)
	assert.LessOrEqual(t, bytes, maxMemory)
	for i := topics - viewed; i < topics; i++ {
		track := st.topics[name(i)].tracks[fine]
		require.NotNil(t, track, "topic %d is on view", i)
		require.Len(t, track.times, 700, "topic %d is on view", i)
	}
}
