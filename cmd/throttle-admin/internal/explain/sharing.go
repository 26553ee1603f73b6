package explain

import (
	"fmt"
	"math"
	"slices"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A sharing is what explain shows of a limit by its sharing mode.
type sharing interface {
	// fill completes the view of a limit with its state in the permit store.
	fill(v *limitView, state schedule.State, now float64)
	// shares completes what replicas publish about the limit with key.
	shares(key string, replicas []dispatch.Stats)
	// exemptsCaughtUp reports whether the mode lets subscriptions without a backlog bypass a
	// limit that is not an aggregate.
	exemptsCaughtUp() bool
	// fault describes a setting of the limit that stops it permanently; "" if there is none.
	fault(l limit) string
	// why describes the state of the limit, in sentences.
	why(l limit, v limitView, replicas []replicaView) []string
}

// sharingOf returns the sharing mode of a policy's message rate.
func sharingOf(p policy.Policy) sharing {
	switch settings := p.WithDefaults().Sharing; settings.Mode {
	case policy.Strict:
		return strict{maxReserved: *settings.MaxReserved}
	case policy.Split:
		return split{}
	case policy.Groups:
		return groups{names: settings.Groups, keepBack: *settings.KeepBack}
	}
	return fair{}
}

// fair: one schedule in the permit store; replicas publish their shares.
type fair struct{}

func (fair) fill(v *limitView, state schedule.State, now float64) {
	if state.Inc == 0 { // there is no schedule
		return
	}
	v.InForce, v.Revision = state.Rate, state.Rev.Number
	v.Ramp = state.Ramp.Over > 0 && !differ(state.Top, v.Rate) && differ(state.Rate, v.Rate)
	v.Ahead = max(0, state.Tail-now)
	v.Allocated = v.Ahead * state.Rate
}

func (fair) shares(string, []dispatch.Stats)              {}
func (fair) exemptsCaughtUp() bool                        { return true }
func (fair) fault(limit) string                           { return "" }
func (fair) why(limit, limitView, []replicaView) []string { return nil }

// strict: one schedule, from which replicas take slots in turn without knowing of each other.
type strict struct {
	fair
	maxReserved int64
}

func (s strict) fill(v *limitView, state schedule.State, now float64) {
	s.fair.fill(v, state, now)
	v.Strict, v.Queued = true, len(state.Queue)
	v.MaxReserved = min(s.maxReserved, int64(schedule.MostReserved(v.Rate)))
	v.Reserved = max(0, int64(math.Ceil(v.Allocated-1e-6))-1)
}

// shares divides the rate evenly among the subscriptions that wait for the limit or use it.
func (strict) shares(key string, replicas []dispatch.Stats) {
	var sharers []*dispatch.LimitStats
	for _, r := range replicas {
		for _, s := range r.Subscriptions {
			for i := range s.Limits {
				if l := &s.Limits[i]; l.Key == key && (s.Waiting > 0 || l.Use > 0) {
					sharers = append(sharers, l)
				}
			}
		}
	}
	for _, l := range sharers {
		l.Share = l.Rate / float64(len(sharers))
	}
}

// exemptsCaughtUp: the distance between two messages holds for all of them.
func (strict) exemptsCaughtUp() bool { return false }

func (strict) why(_ limit, v limitView, _ []replicaView) (why []string) {
	why = append(why, fmt.Sprintf(
		"The %s is strict, one permit every %s: %d of at most %d slots are allocated ahead.",
		v.Limit, output.Seconds(1/v.Rate), v.Reserved, v.MaxReserved))
	if v.Queued > 0 {
		why = append(why, fmt.Sprintf(
			"%d callers wait in the queue for the next slot, first come first served.", v.Queued))
	}
	return why
}

// split: each replica takes the same part; there is no schedule.
type split struct{ fair }

func (split) fill(v *limitView, _ schedule.State, _ float64) { v.Sharing = policy.Split }

// groups: worker groups have parts of each period's permits; there is no schedule.
type groups struct {
	fair
	names    []string
	keepBack float64
}

func (groups) fill(v *limitView, _ schedule.State, _ float64) { v.Sharing = policy.Groups }

func (g groups) fault(l limit) string {
	if len(g.names) > 0 {
		return ""
	}
	return fmt.Sprintf("Throttled permanently: the limit of %s is divided over worker groups, "+
		"and names none. Set sharing.groups=a,b.", l.scope)
}

// why names the worker groups without a replica.
func (g groups) why(l limit, _ limitView, replicas []replicaView) (why []string) {
	for _, name := range g.names {
		inGroup := func(s dispatch.LimitStats) bool { return s.Group == name }
		if !slices.ContainsFunc(replicas, func(r replicaView) bool {
			return slices.ContainsFunc(r.Limits, inGroup)
		}) {
			why = append(why, fmt.Sprintf("No replica is in worker group %s of %s: the others use "+
				"at most %s %% of its part of %s; the rest is lost.",
				name, l.scope, output.Number(100*(1-g.keepBack)), l.rate))
		}
	}
	return why
}
