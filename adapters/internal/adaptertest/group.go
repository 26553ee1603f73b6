package adaptertest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

// A tally is what the members of a group got.
type tally struct {
	mu      sync.Mutex
	got     map[string]int
	settled map[string]bool
	late    int // messages that came after they were settled
}

func (t *tally) add(m Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.got[m.Value]++
	if t.settled[m.Value] {
		t.late++
	}
}

func (t *tally) settle(m Message) (all int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled[m.Value] = true
	return len(t.settled)
}

// member reads and settles messages until ctx ends, or all are settled, and closes the consumer.
func (w *world) member(ctx context.Context, c Consumer, t *tally, all int, done func()) {
	defer func() { assert.NoError(w, c.Close()) }()
	for ctx.Err() == nil {
		m, err := c.Next(ctx)
		if err != nil {
			continue // ctx
		}
		t.add(m)
		settling, cancel := w.patient()
		err = c.Settle(settling, m)
		cancel()
		if err != nil {
			continue // its partition has gone to another member, which gets it again
		}
		if t.settle(m) == all {
			done()
		}
	}
}

// comeAndGo: members of a group open and close at random, some while all others wait for permits.
// Every message comes.
func comeAndGo(w *world) {
	const partitions, each, members, fills = 4, 100, 3, 5
	w.create(partitions)
	w.fill(each / fills)
	w.lim.Set(always(policy.Policy{MessageRate: policy.PerSecond(100)}))
	all, done := w.patient()
	defer done()
	t := &tally{got: map[string]int{}, settled: map[string]bool{}}
	var running sync.WaitGroup
	for range members {
		running.Go(func() {
			for all.Err() == nil {
				ctx, cancel := context.WithTimeout(all, time.Second+rand.N(2*time.Second))
				w.member(ctx, w.Open(w, w.lim, Options{Topic: w.topic}), t, partitions*each, done)
				cancel()
			}
		})
	}
	for range fills - 1 { // those that come later are settled after those that could be lost
		time.Sleep(500 * time.Millisecond)
		w.fill(each / fills)
	}
	running.Wait()
	require.Len(w, t.settled, partitions*each)
	w.Logf("%d messages came after they were settled", t.late)
}

// A counted counts the messages of a consumer that one goroutine uses.
type counted struct {
	Consumer
	n int
}

func (c *counted) Next(ctx context.Context) (Message, error) {
	m, err := c.Consumer.Next(ctx)
	if err == nil {
		c.n++
	}
	return m, err
}

// rebalance: a message that waits while its partition goes to another member comes from that one,
// at least: a Pulsar client returns what it has read ahead, too.
func rebalance(w *world) {
	const partitions, each = 2, 20
	w.create(partitions)
	w.fill(each)
	w.lim.Set(policy.Policy{Paused: new(true)})
	all, done := w.patient()
	defer done()
	t := &tally{got: map[string]int{}, settled: map[string]bool{}}
	var running sync.WaitGroup
	join := func(c Consumer) {
		running.Go(func() { w.member(all, c, t, partitions*each, done) })
	}
	first := &counted{Consumer: w.open()}
	join(first)
	w.waits(1)
	second := &counted{Consumer: w.open()}
	join(second)
	w.waits(2) // each has a partition
	require.Empty(w, t.got)
	w.lim.Set(policy.Policy{})
	running.Wait()
	require.Len(w, t.settled, partitions*each)
	require.Positive(w, first.n)
	require.Positive(w, second.n)
	w.Logf("%d messages came after they were settled", t.late)
}
