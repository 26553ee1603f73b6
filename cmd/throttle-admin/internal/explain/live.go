package explain

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A limitView is one limit as the permit store has it. Rates are in permits a second.
type limitView struct {
	Limit dispatch.Reason `json:"limit"`
	Scope string          `json:"scope"`
	Key   string          `json:"key"`

	// Rate is that of the policies or, of a quota, that of the ratekeeper, 0 if it is not known.
	Rate float64     `json:"rate"`
	Mode policy.Mode `json:"mode"` // enforce or shadow
	// InForce is the rate of the last allocation, 0 without one. Ramp is whether it still rises to
	// Rate, Revision that of its policy.
	InForce  float64 `json:"inForce,omitempty"`
	Ramp     bool    `json:"ramp,omitempty"`
	Revision int64   `json:"revision,omitempty"`
	// Ahead is the time allocated ahead, in seconds, and Allocated the permits in it.
	Ahead     float64 `json:"ahead,omitempty"`
	Allocated float64 `json:"allocated,omitempty"`

	// Rival is another policy store whose replicas use the limit, as they or the permit store say.
	Rival string `json:"rival,omitempty"`

	// Sharing is split or groups, which have no schedule.
	Sharing policy.SharingMode `json:"sharing,omitempty"`

	// Of a strict limit:
	Strict      bool  `json:"strict,omitempty"`
	Reserved    int64 `json:"reserved,omitempty"` // slots allocated ahead
	MaxReserved int64 `json:"maxReserved,omitempty"`
	Queued      int   `json:"queued,omitempty"` // callers in its queue
}

// A replicaView is one subscription in one replica. Share, Use and Rate, in permits a second, are
// those of its first limit that is not in shadow mode.
type replicaView struct {
	Replica  string  `json:"replica"`
	Revision int64   `json:"revision"` // of its policies
	Version  string  `json:"version"`
	Share    float64 `json:"share"`
	Use      float64 `json:"use"`
	Rate     float64 `json:"rate"`
	State    string  `json:"state"`
	dispatch.SubscriptionStats
}

// name returns the subscription, with the id that it is charged to if it was opened with one.
func (r replicaView) name() string {
	if r.Owner == "" {
		return r.Subscription
	}
	return r.Subscription + " (" + r.Owner + ")"
}

// addLive adds the state of the limits and the replicas that share them.
func (x *explanation) addLive(ctx context.Context, a *cli.App, store dispatch.PermitStore) error {
	for _, l := range x.limits {
		v := limitView{
			Limit: l.reason(), Scope: l.scope.String(), Rate: l.rate.PerSec(),
			Mode: modeOf(l.mode.IsShadow()), Key: permits.LimitKey(x.Cluster, l.scope, l.bytes),
		}
		state, now, err := store.State(ctx, v.Key)
		if err != nil {
			return err
		}
		l.shared.fill(&v, state, now)
		if v.Sharing == "" && state.RivalCounts(now) { // else it is a schedule of former policies
			v.Rival = schedule.RivalOf(x.Identity, state.Source, state.Rival.Source)
		}
		x.Limits = append(x.Limits, v)
	}
	replicas, err := a.Published(ctx, store)
	for i, l := range x.limits {
		v := &x.Limits[i]
		l.shared.shares(v.Key, replicas)
		v.Rival = cmp.Or(v.Rival, rivalOf(v.Key, x.Identity, replicas))
	}
	for _, r := range replicas {
		x.addReplica(r)
	}
	x.Held, x.replicas = cli.HeldBy(replicas), replicas
	x.Live = true
	return errors.Join(err, x.addQuotas(ctx, store))
}

// rivalOf returns the policy store other than own that replicas say uses the limit with that key.
func rivalOf(key, own string, replicas []dispatch.Stats) string {
	for _, r := range replicas {
		for _, s := range r.Subscriptions {
			for _, l := range s.Limits {
				switch {
				case l.Key != key || l.Rival == "":
				case l.Rival != own:
					return l.Rival
				default:
					return r.Identity
				}
			}
		}
	}
	return ""
}

// A heldUp is a consumer whose messages of the topic wait behind one of another topic.
type heldUp struct {
	replica, behind, subscription string
	reason                        dispatch.Reason
}

// addReplica adds the topic's subscriptions in a replica.
func (x *explanation) addReplica(r dispatch.Stats) {
	for _, s := range r.Subscriptions {
		if s.Waiting > 0 && slices.Contains(s.HoldsUp, x.Topic) {
			x.heldUp = append(x.heldUp, heldUp{r.Replica, s.Topic, s.Subscription, s.Reason})
		}
		if s.Topic != x.Topic || x.Subscription != "" && s.Subscription != x.Subscription {
			continue
		}
		v := replicaView{
			Replica: r.Replica, Revision: r.Revision, Version: r.Version,
			State: stateOf(s), SubscriptionStats: s,
		}
		if l := firstOf(s.Limits); l != nil {
			v.Share, v.Use, v.Rate = l.Share, l.Use, l.Rate
		}
		x.Replicas = append(x.Replicas, v)
	}
}

func modeOf(shadow bool) policy.Mode {
	if shadow {
		return policy.Shadow
	}
	return policy.Enforce
}

// firstOf returns the first limit that is not in shadow mode, or else the first one, or nil.
func firstOf(limits []dispatch.LimitStats) *dispatch.LimitStats {
	for i := range limits {
		if !limits[i].Shadow {
			return &limits[i]
		}
	}
	if len(limits) == 0 {
		return nil
	}
	return &limits[0]
}

// shadowOnly reports whether there are limits, all in shadow mode.
func shadowOnly(limits []dispatch.LimitStats) bool {
	first := firstOf(limits)
	return first != nil && first.Shadow
}

// stateOf returns the state of a subscription in a replica.
func stateOf(s dispatch.SubscriptionStats) string {
	switch {
	case s.Waiting > 0:
		return "throttled"
	case shadowOnly(s.Limits):
		return "shadow"
	case s.CaughtUp && s.Exempt:
		return "caught up"
	case s.Exempt:
		return "exempt"
	}
	return "not throttled"
}

// addQuotas adds the state of the quotas that subscriptions are charged to.
func (x *explanation) addQuotas(ctx context.Context, store dispatch.PermitStore) error {
	for _, r := range x.Replicas {
		if id, err := policy.ParseScope(r.Owner); err == nil && r.Owner != "" {
			x.addQuota(id)
		}
	}
	if len(x.quotas) == 0 {
		return nil
	}
	var ids []quota.ID
	for _, id := range x.quotas {
		ids = append(ids, quota.ID(id.String()))
	}
	rates, now, err := dispatch.Rates(ctx, store, x.Cluster, ids)
	if err != nil && !errors.Is(err, dispatch.ErrInvalidRates) { // those count as none
		return err
	}
	x.unkept = rates.Old(now)
	for _, id := range x.quotas {
		v := limitView{
			Limit: dispatch.ReasonQuota, Scope: id.String(), Key: permits.QuotaKey(x.Cluster, id),
		}
		q, _ := x.set.Quota(id)
		v.Mode = modeOf(q.Shadow)
		if !q.Shadow {
			v.Rate = rates.Of(id, q, now)
		}
		state, now, err := store.State(ctx, v.Key)
		if err != nil {
			return err
		}
		if state.Rate < busy.Max { // else it is counted only
			fair{}.fill(&v, state, now)
		}
		x.Limits = append(x.Limits, v)
	}
	return nil
}

// differ reports whether two rates differ by more than a rounding error.
func differ(a, b float64) bool { return a > b*1.000001 || b > a*1.000001 }
