package sharing

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A pair is two shares of a strict limit of 10/s in one process, of two subscriptions: a has slots,
// and a caller of b waits.
type pair struct {
	*Env
	a, b   *strict
	served []*Share // by a slot of the other
}

func newPair(due ...float64) *pair {
	p := &pair{Env: &Env{Rand: rand.New(rand.NewPCG(1, 1)), Timeout: constant(0)}}
	p.Serve = func(s *Share, _ float64) { p.served = append(p.served, s) }
	p.a, p.b = p.join("a"), p.join("b")
	for _, at := range due {
		p.a.batches = append(p.a.batches, slotAt(at))
	}
	p.b.note(1, oneWaits)
	return p
}

func (p *pair) join(subscription string) *strict {
	limit := strictLimit(10)
	limit.Sharer = subscription
	s := New(p.Env, limit, 1).Mode.(*strict)
	s.paceRate, s.inc, s.confirmedAt = 10, 7, 1.3
	return s
}

func slotAt(due float64) batch { return batch{n: 1, left: 1, due: due, expires: due + 0.02} }

var oneWaits = Demand{Waiting: 1, Callers: 1, Anybody: true}

func dues(s *strict) (due []float64) {
	for _, slot := range s.batches {
		if slot.left > 0 {
			due = append(due, slot.due)
		}
	}
	return due
}

// TestTurnOfAnother: a slot that is due goes to a caller of another share whose turn it is, for a
// later slot of that share if a caller waits for it.
func TestTurnOfAnother(t *testing.T) {
	p := newPair(2, 2.1)
	p.a.newestToStore, p.b.newestToStore = true, true
	p.b.batches = []batch{slotAt(2.05)}
	p.b.confirmedAt = 0.5
	p.a.confirmedAt = 1.5
	p.a.Advance(Time{Now: 2, Step: 5}, Demand{})
	assert.EqualValues(t, 1, p.b.Available())
	assert.Equal(t, []*Share{p.b.Share}, p.served)
	assert.True(t, p.b.Fresh(5) && !p.b.Fresh(4))
	assert.EqualValues(t, sinceStart(2.02), p.b.UsableUntil())
	assert.Equal(t, []float64{2.1}, dues(p.a), "no caller waits for another slot")
	assert.Equal(t, []float64{2.05}, dues(p.b))
	assert.True(t, p.a.newestToStore && p.b.newestToStore, "the newest of both are those of their last replies")

	p = newPair(2, 2.1)
	p.a.newestToStore, p.b.newestToStore = true, true
	p.b.batches = []batch{slotAt(2.05)}
	p.a.Advance(Time{Now: 2}, oneWaits)
	assert.Equal(t, []float64{2.05, 2.1}, dues(p.a))
	assert.True(t, p.a.newestToStore)
	assert.Empty(t, dues(p.b))
	assert.False(t, p.b.newestToStore)

	p = newPair(2)
	p.a.newestToStore = true
	p.b.batches = []batch{slotAt(2.05)}
	p.a.Advance(Time{Now: 2}, oneWaits)
	assert.Equal(t, []float64{2.05}, dues(p.a))
	assert.False(t, p.a.newestToStore, "it was another's")
}

// TestTurnsOfOne: the shares of one subscription take turns at its turns.
func TestTurnsOfOne(t *testing.T) {
	p := newPair(2, 2.1, 2.2)
	c := p.join("b")
	c.note(1.1, oneWaits)
	take := func(s *strict) {
		assert.EqualValues(t, 1, s.Take(1))
		assert.EqualValues(t, 0, p.a.Available())
	}
	for i, s := range []*strict{p.b, c, p.b} {
		p.a.Advance(Time{Now: 2 + 0.1*float64(i)}, Demand{})
		take(s)
		assert.Equal(t, s.Share, p.served[i])
		assert.Len(t, s.batches, 1, "the one before was taken")
		assert.Empty(t, dues(s))
	}
}

// TestOwnTurn: a slot stays with its share if that was served longer ago, if its caller does not
// wait for another, if the other knows another schedule, and while all goes back to the store.
func TestOwnTurn(t *testing.T) {
	for _, c := range []struct {
		name   string
		demand Demand
		set    func(p *pair)
	}{
		{"served longer ago", oneWaits, func(p *pair) {
			p.a.served(1.2)
			p.b.served(1.3)
		}},
		{"try", Demand{Try: true, Anybody: true}, func(*pair) {}},
		{"another schedule", oneWaits, func(p *pair) { p.b.inc = 8 }},
		{"another limit holds it up", oneWaits, func(p *pair) { p.b.demand.Lacks = true }},
		{"closing", Demand{}, func(p *pair) { p.Closing = true }},
		{"own subscription", oneWaits, func(p *pair) { p.b.Limit.Sharer = "a" }},
		{"has a slot", oneWaits, func(p *pair) { p.b.supply(1) }},
	} {
		p := newPair(2)
		c.set(p)
		p.a.Advance(Time{Now: 2}, c.demand)
		assert.EqualValues(t, 1, p.a.Available(), c.name)
		assert.Empty(t, p.served, c.name)
	}
}

// TestTurnOfANewcomer: a subscription without a known turn is taken to have had one a turn of all
// before it began to wait.
func TestTurnOfANewcomer(t *testing.T) {
	p := newPair()
	p.a.note(2, oneWaits)
	p.a.served(2)
	ring := p.turns[p.a.Limit.Key]
	newcomer := p.join("c")
	newcomer.note(2.2, oneWaits) // three wait, for a slot each 0.1 s
	assert.True(t, ring.before(newcomer, p.a))
	newcomer.note(2.2, Demand{})
	newcomer.note(2.4, oneWaits)
	assert.False(t, ring.before(newcomer, p.a))
}

// TestUnusedSlot: a slot that was released to a share, or is still to come, and that no caller of
// it wants, is another's.
func TestUnusedSlot(t *testing.T) {
	p := newPair(2)
	p.a.Advance(Time{Now: 1.9}, oneWaits)
	p.b.inc = 0 // so that it is not passed at once
	p.a.Advance(Time{Now: 2}, oneWaits)
	assert.EqualValues(t, 1, p.a.Available())
	p.b.inc = 7
	p.a.Advance(Time{Now: 2.01}, oneWaits)
	assert.EqualValues(t, 1, p.a.Available(), "its caller is just coming")
	p.a.Advance(Time{Now: 2.01}, Demand{})
	assert.Zero(t, p.a.Available())
	assert.EqualValues(t, 1, p.b.Available())

	p = newPair(2, 2.1)
	p.a.newestToStore = true
	assert.Nil(t, p.a.Next(1.4, Demand{}), "what is not used is for b")
	assert.Equal(t, []float64{2, 2.1}, dues(p.b))
	assert.Nil(t, p.a.Drain(1.4))

	p = newPair(2, 2.1)
	p.b.Limit.Sharer = "a"
	assert.Nil(t, p.a.Next(1.4, Demand{}), "or for another owner")
	assert.Equal(t, []float64{2, 2.1}, dues(p.b))

	p = newPair(2, 2.1)
	p.b.batches = []batch{slotAt(2.05)}
	assert.Nil(t, p.a.Next(1.4, Demand{}), "b has one, and gets these when they are due")
	assert.Equal(t, []float64{2, 2.1}, dues(p.a))
	assert.Nil(t, p.a.Drain(1.4))
	assert.Equal(t, []float64{2, 2.05, 2.1}, dues(p.b), "a ends")

	p = newPair(2, 2.1)
	p.a.newestToStore = true
	assert.Nil(t, p.a.Next(1.4, oneWaits), "one is more than it keeps")
	assert.Equal(t, []float64{2}, dues(p.a))
	assert.Equal(t, []float64{2.1}, dues(p.b))
	p.b.note(1.4, Demand{})
	assert.Nil(t, p.a.Next(1.4, oneWaits))
	assert.Nil(t, p.a.Next(1.4, Demand{}), "the store would not take the one back")
}

// TestSlotsOfAnOldPace: a closed share, which hears of no change, leaves its slots to none that has
// heard of one.
func TestSlotsOfAnOldPace(t *testing.T) {
	p := newPair(2, 2.1)
	p.b.Apply(at(p.b.Limit, 2))
	p.b.Advance(Time{Now: 1.4}, oneWaits)
	p.a.Drain(1.4)
	assert.Empty(t, dues(p.b))
}

// TestLeavesQueue: a share without callers leaves the queue, also if its slots go to another share.
func TestLeavesQueue(t *testing.T) {
	p := newPair(2)
	p.a.Limit.Queue, p.a.queued, p.a.retryAt = true, true, 3
	p.b.batches = []batch{slotAt(2.05)}
	r := p.a.Next(1.4, Demand{})
	if assert.NotNil(t, r) {
		assert.Zero(t, r.Allocate.Want)
	}
}

// TestTurnsAreForgotten: nothing is left of shares that wait no more.
func TestTurnsAreForgotten(t *testing.T) {
	p := newPair()
	for i := range 1000 {
		s := p.join(fmt.Sprint(i))
		s.note(2, oneWaits)
		s.served(2)
		s.note(2, Demand{})
		assert.LessOrEqual(t, len(p.turns[p.b.Limit.Key].served), 30)
	}
	assert.Len(t, p.turns, 1)
	p.b.note(3, Demand{})
	assert.Empty(t, p.turns)
}
