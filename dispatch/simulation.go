package dispatch

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Simulation is readers that share one limit of messages, in virtual time. Replicas decide and the store allocates as in a [Limiter]
// with a [PermitStore]; made up are the messages that come, and the time that a call of the store takes. The same seed gives the same run. Sharing
// is allocated.
type Simulation struct {
	Policy  policy.Policy // of the topic; its message rate, burst, round and ramp count
	Readers []SimulatedReader
	Seed    uint64

	replicas []*simulated
	state    schedule.State
	subs     map[string]schedule.Sub
	random   *rand.Rand
	steps    uint64
	revision int64
}

// A SimulatedReader is a subscription's replicas, all alike.
type SimulatedReader struct {
	Subscription string  `json:"subscription"`
	Replicas     int     `json:"replicas"` // default 1
	Weight       float64 `json:"weight"`   // default 1
	Reserved     float64 `json:"reserved"` // messages a second
	Rate         float64 `json:"rate"`     // messages a second that come to each of them, at random; 0: there is no end of them
	From         float64 `json:"from"`     // seconds
	Until        float64 `json:"until"`    // seconds; 0: the end
}

// A simulated replica.
type simulated struct {
	reader    *SimulatedReader
	account   *account
	backlog   float64
	call      *call // under way; nil: none
	arrives   float64
	allocated bool
}

// The times of a simulation, in seconds. A call takes as long as measured on a Redis nearby.
const (
	simulatedTick      = 0.002
	simulatedRTT       = 0.0002 // at least, and up to
	simulatedRTTSpread = 0.0006 // more
	simulatedTimeout   = 1.0
	simulatedEndless   = 1 << 20 // messages that somebody with no end of them asks for
	mostSimulatedRates = 1e6
)

// Validate returns all that is wrong with a simulation.
func (s *Simulation) Validate() error {
	errs := []error{s.Policy.Validate(policy.ClusterScope())}
	if !s.Policy.MessageRate.Limited() {
		errs = append(errs, errors.New("policy.messageRate: there is none: what would be shared?"))
	}
	if sharing := s.Policy.Sharing; sharing != "" && sharing != policy.Fair {
		errs = append(errs, fmt.Errorf("policy.sharing %q: only allocated is simulated", sharing))
	}
	if len(s.Readers) == 0 {
		errs = append(errs, errors.New("readers: there are none"))
	}
	for i, r := range s.Readers {
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("readers[%d]."+format, append([]any{i}, args...)...))
		}
		if r.Subscription == "" {
			bad("subscription: is empty")
		}
		if r.Replicas < 0 || r.Replicas > 1000 {
			bad("replicas %d: is outside 1..1000", r.Replicas)
		}
		for _, f := range []struct {
			name  string
			value float64
		}{{"weight", r.Weight}, {"reserved", r.Reserved}, {"rate", r.Rate}, {"from", r.From}, {"until", r.Until}} {
			if !(f.value >= 0 && f.value <= mostSimulatedRates) { // NaN is neither
				bad("%s %v: is outside 0..%.0f", f.name, f.value, float64(mostSimulatedRates))
			}
		}
		if r.Until > 0 && r.Until <= r.From {
			bad("until %v: is not after from %v", r.Until, r.From)
		}
	}
	return errors.Join(errs...)
}

// A SimulatedSecond is what was dispatched in a second.
type SimulatedSecond struct {
	Time     int              `json:"time"`
	Limit    float64          `json:"limit"`    // messages a second, at its end
	Messages map[string]int64 `json:"messages"` // of each subscription
	Requests int              `json:"requests"` // allocations of all
}

// Second lets a second go by. The simulation must be valid.
func (s *Simulation) Second() SimulatedSecond {
	if s.random == nil {
		s.start()
	}
	now := 0.0
	second := SimulatedSecond{Messages: map[string]int64{}}
	for range int(math.Round(1 / simulatedTick)) {
		s.steps++
		now = 1 + float64(s.steps)*simulatedTick // the store's clock is never 0
		for _, r := range s.replicas {
			if s.answer(r, now) {
				second.Requests++
			}
			second.Messages[r.reader.Subscription] += s.step(r, now)
		}
	}
	second.Time, second.Limit = int(math.Round(now-1)), s.state.Rate
	return second
}

func (s *Simulation) start() {
	s.random, s.subs = rand.New(rand.NewPCG(s.Seed, 1)), map[string]schedule.Sub{}
	for i := range s.Readers {
		r := &s.Readers[i]
		for range max(1, r.Replicas) {
			s.replicas = append(s.replicas, &simulated{
				reader: r, account: newAccount(&limit{key: "simulation"}, r.Subscription, ReasonMessages, 1),
			})
		}
	}
	s.Change(s.Policy)
}

// Change has all replicas learn of another policy, at once.
func (s *Simulation) Change(p policy.Policy) {
	s.Policy = p
	s.revision++
	for _, r := range s.replicas {
		r.account.set(p.MessageRate, p.RampFrom, p.MessageBurst(), p, cmp.Or(r.reader.Weight, 1), r.reader.Reserved, false,
			policy.Snapshot{Identity: "simulation", Revision: s.revision})
	}
}

// answer has the store allocate what has arrived there, and the replica know it when it is back.
func (s *Simulation) answer(r *simulated, now float64) (allocated bool) {
	c := r.call
	if c == nil {
		return false
	}
	if !r.allocated && now >= r.arrives {
		allocated, r.allocated = true, true
		request := c.allocation.Request
		s.state, s.subs[request.Subscription], c.reply.Reply = schedule.Allocate(s.state, s.subs[request.Subscription], request, r.arrives)
	}
	if r.allocated && now >= c.done {
		r.call = nil
		r.account.answered(c, now, s.random.Float64())
	}
	return allocated
}

// step is one of a replica; it returns how many messages are dispatched in it.
func (s *Simulation) step(r *simulated, now float64) int64 {
	a := r.account
	there := now-1 >= r.reader.From && (r.reader.Until == 0 || now-1 < r.reader.Until)
	switch {
	case !there:
		r.backlog = 0
	case r.reader.Rate == 0:
		r.backlog = simulatedEndless
	default:
		r.backlog += poisson(s.random, r.reader.Rate*simulatedTick)
	}
	a.advance(s.steps, now, 0, r.demand())
	n := a.take(int64(r.backlog))
	r.backlog -= float64(n)
	w := a.wanted // who was served comes back soon
	if r.backlog > 0 {
		w = r.demand()
	}
	if c := a.allocate(s.steps, now, w, !there, simulatedTimeout); c != nil {
		c.allocation.Request.Nonce = 1 + s.random.Int64N(1<<52)
		rtt := simulatedRTT + simulatedRTTSpread*s.random.Float64()
		r.call, r.allocated, r.arrives, c.done = c, false, now+rtt/2, now+rtt
	}
	return n
}

// demand is what the replica's callers want at this moment.
func (r *simulated) demand() (d demand) {
	if r.backlog < 1 {
		return d
	}
	d.anybody, d.callers = true, 1
	if r.account.avail.Load() <= 0 {
		d.waiting = r.backlog
	}
	return d
}

// poisson is a random number of events of which there are so many on average.
func poisson(random *rand.Rand, mean float64) (n float64) {
	for t := random.ExpFloat64(); t < mean; t += random.ExpFloat64() {
		n++
	}
	return n
}
