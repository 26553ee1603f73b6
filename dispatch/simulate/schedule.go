// Package simulate runs the decisions of replicas and of a permit store in virtual time. The same
// seed gives the same run.
package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/internal/sharing"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Schedule is a set of consumers that share one limit of messages. Replicas and the permit store
// decide as in production; the arriving messages and the times of requests are simulated. The
// sharing.mode is fair. A Schedule is not safe for concurrent use.
type Schedule struct {
	Policy    policy.Policy // of the topic; its message rate, burst, round and ramp count
	Consumers []Consumers
	Seed      uint64

	replicas []*replica
	state    schedule.State
	subs     map[string]schedule.Sub
	env      sharing.Env
	steps    uint64
	revision int64
}

// Consumers are the identical replicas of a subscription.
type Consumers struct {
	Subscription string  `json:"subscription"`
	Replicas     int     `json:"replicas"` // default 1
	Weight       float64 `json:"weight"`   // default 1
	Reserved     float64 `json:"reserved"` // messages a second
	Rate         float64 `json:"rate"`     // messages a second that arrive at each; 0: without end
	From         float64 `json:"from"`     // seconds
	Until        float64 `json:"until"`    // seconds; 0: the end
}

// A replica is one of the consumers.
type replica struct {
	consumers *Consumers
	share     *sharing.Share
	backlog   float64
	request   *permits.Request // on its way; nil: none
	arrives   float64          // when the store gets it
	reply     bool             // the store has answered
	done      float64          // when the answer arrives
}

// The times of a simulation, in seconds. A request takes as long as measured on a Redis nearby.
const (
	tick      = 0.002
	rtt       = 0.0002 // at least, and up to
	rttSpread = 0.0006 // more
	timeout   = 1.0
)

const (
	endless = 1 << 20 // messages of a backlog without end
	maxRate = 1e6
)

// Validate returns all faults of a simulation.
func (s *Schedule) Validate() error {
	errs := []error{s.Policy.Validate(policy.ClusterScope())}
	if !s.Policy.MessageRate.Limited() {
		errs = append(errs, errors.New(
			"policy.messageRate: is not set: want the rate that is shared, such as 1000/s"))
	}
	if mode := s.Policy.Sharing.Mode; mode != "" && mode != policy.Fair {
		errs = append(errs, fmt.Errorf("policy.sharing.mode %q: is not simulated: want fair", mode))
	}
	if len(s.Consumers) == 0 {
		errs = append(errs, errors.New("consumers: are not set: want at least one subscription"))
	}
	for i, c := range s.Consumers {
		fault := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("consumers[%d]."+format, append([]any{i}, args...)...))
		}
		if c.Subscription == "" {
			fault("subscription: is empty: want a name")
		}
		if c.Replicas < 0 || c.Replicas > 1000 {
			fault("replicas %d: out of range: want 1 to 1000", c.Replicas)
		}
		for _, f := range []struct {
			name  string
			value float64
		}{
			{"weight", c.Weight},
			{"reserved", c.Reserved},
			{"rate", c.Rate},
			{"from", c.From},
			{"until", c.Until},
		} {
			if !(f.value >= 0 && f.value <= maxRate) { // NaN is neither
				fault("%s %v: out of range: want 0 to %.0f", f.name, f.value, float64(maxRate))
			}
		}
		if c.Until > 0 && c.Until <= c.From {
			fault("until %v: is not after from %v", c.Until, c.From)
		}
	}
	return errors.Join(errs...)
}

// A Second is what was dispatched in a second.
type Second struct {
	Time     int              `json:"time"`
	Limit    float64          `json:"limit"`    // messages a second, at its end
	Messages map[string]int64 `json:"messages"` // of each subscription
	Requests int              `json:"requests"` // of all replicas
}

// Second simulates one second. The simulation must be valid.
func (s *Schedule) Second() Second {
	if s.replicas == nil {
		s.start()
	}
	now := 0.0
	second := Second{Messages: map[string]int64{}}
	for range int(math.Round(1 / tick)) {
		s.steps++
		now = 1 + float64(s.steps)*tick // the store's clock is never 0
		for _, r := range s.replicas {
			if s.answer(r, now) {
				second.Requests++
			}
			second.Messages[r.consumers.Subscription] += s.step(r, now)
		}
	}
	second.Time, second.Limit = int(math.Round(now-1)), s.state.Rate
	return second
}

func (s *Schedule) start() {
	s.env.Rand = rand.New(rand.NewPCG(s.Seed, 1))
	s.env.Timeout = func() float64 { return timeout }
	s.subs = map[string]schedule.Sub{}
	s.revision++
	for i := range s.Consumers {
		c := &s.Consumers[i]
		for range max(1, c.Replicas) {
			share := sharing.New(&s.env, s.limit(c), 1)
			s.replicas = append(s.replicas, &replica{consumers: c, share: share})
		}
	}
}

// Change changes the policy of all replicas at once.
func (s *Schedule) Change(p policy.Policy) {
	s.Policy = p
	s.revision++
	for _, r := range s.replicas {
		r.share.Apply(s.limit(r.consumers))
	}
}

// limit is the limit of some consumers by the present policy.
func (s *Schedule) limit(c *Consumers) resolve.Limit {
	terms := resolve.Terms{
		Policies: policy.Snapshot{
			Set: policy.Single(s.Policy), Identity: "simulation", Revision: s.revision,
		},
	}
	lane := resolve.LaneID{
		Topic: policy.Topic{
			Scheme: "kafka", Tenant: "public", Namespace: "default", Name: "orders",
		},
		Subscription: c.Subscription,
	}
	limit := resolve.Resolve(terms, lane, policy.Matches{}, resolve.Reports{}).Messages[0]
	limit.Weight, limit.Reserved = cmp.Or(c.Weight, 1), c.Reserved
	return limit
}

// answer has the store answer a request that has arrived there, and the replica take the answer in
// when it is back.
func (s *Schedule) answer(r *replica, now float64) (answered bool) {
	if r.request == nil {
		return false
	}
	if !r.reply && now >= r.arrives {
		answered, r.reply = true, true
		a := r.request.Allocate
		sub := s.subs[a.Subscription]
		s.state, sub, a.Reply = schedule.Allocate(s.state, sub, a.Request, r.arrives)
		s.subs[a.Subscription] = sub
	}
	if r.reply && now >= r.done {
		r.share.Mode.Answered(r.request, r.done, now)
		r.request = nil
	}
	return answered
}

// step is one of a replica; it returns how many messages are dispatched in it.
func (s *Schedule) step(r *replica, now float64) int64 {
	there := now-1 >= r.consumers.From && (r.consumers.Until == 0 || now-1 < r.consumers.Until)
	switch {
	case !there:
		r.backlog = 0
	case r.consumers.Rate == 0:
		r.backlog = endless
	default:
		r.backlog += poisson(s.env.Rand, r.consumers.Rate*tick)
	}
	r.share.Mode.Advance(sharing.Time{Now: now, Step: s.steps}, r.demand())
	n := r.share.Take(int64(r.backlog))
	r.backlog -= float64(n)
	var request *permits.Request
	if there {
		request = r.share.Mode.Next(now, r.demand())
	} else {
		request = r.share.Mode.Drain(now)
	}
	if request != nil {
		takes := rtt + rttSpread*s.env.Rand.Float64()
		r.request, r.reply, r.arrives, r.done = request, false, now+takes/2, now+takes
	}
	return n
}

// demand is what the replica's callers want at this moment.
func (r *replica) demand() (d sharing.Demand) {
	if r.backlog < 1 {
		return d
	}
	d.Anybody, d.Callers = true, 1
	if r.share.Empty() {
		d.Waiting = r.backlog
	}
	return d
}

// poisson is a random number of events whose average is mean.
func poisson(random *rand.Rand, mean float64) (n float64) {
	for t := random.ExpFloat64(); t < mean; t += random.ExpFloat64() {
		n++
	}
	return n
}
