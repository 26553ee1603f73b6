package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

func (f *facts) heldReplicas() (found []finding) {
	reachable := slices.DeleteFunc(slices.Clone(f.replicas), func(r dispatch.Stats) bool { return !r.PoliciesHeld })
	for _, held := range cli.HeldBy(reachable) {
		found = append(found, finding{fault, "policies-held", "replicas " + cli.Names(held.Replicas), held.Reason,
			fmt.Sprintf("They keep their last policies, of revision %d.", held.Revision),
			"if this policy store is the right one: " + f.adoption(f.idOf(held.Replicas[0]))})
	}
	return found
}

// adoption is the command that has replicas follow this policy store. Nobody adopts an empty one
// by copying a command that was meant for another. Replicas follow no policies of an interim id
// while these are set.
func (f *facts) adoption(flags string) string {
	adopt, empty := "throttle-admin adopt --yes"+flags, "throttle-admin adopt --empty --yes"
	if f.stores[0].err != nil || policy.CountPermanent(f.snapshot.Entries) > 0 {
		return adopt
	}
	again := "set them with --permits '', and then: " + adopt
	switch {
	case flags == "": // no replica knows an id
		again = "set all in one change: throttle-admin apply -f FILE --permits ''"
	case f.snapshot.Marker.Count > 0: // no change is made until it is adopted
		again = "set them again: " + empty + " --id interim; throttle-admin apply -f FILE; " + adopt
	}
	return "restore the policies from a backup, and then: " + adopt + "; or " + again +
		"; or, if it is to be empty: " + empty + flags
}

// idOf returns the flag that names the policies that a replica knows.
func (f *facts) idOf(replica string) string {
	for _, r := range f.replicas {
		if r.Replica == replica && r.Identity != "" {
			return " --id " + cli.Argument(r.Identity)
		}
	}
	return ""
}

// others finds replicas that follow another policy store than this one.
func (f *facts) others() (found []finding) {
	if f.stores[0].err != nil || f.snapshot.Marker.ID == "" {
		return nil
	}
	for _, other := range cli.Others(f.replicas, f.snapshot.Marker.ID) {
		held := func(r dispatch.Stats) bool { return r.Identity == other.ID && r.PoliciesHeld }
		if slices.ContainsFunc(f.replicas, held) {
			continue // another finding
		}
		found = append(found, finding{fault, "other-policies", "replicas " + cli.Names(other.Replicas),
			"they follow the policy store " + other.ID + ", and this one is " + f.snapshot.Marker.ID,
			"No change of this policy store reaches them.",
			"name the same policy store for them (THROTTLE_POLICIES) and here (--policies)"})
	}
	return found
}

func (f *facts) rivals() (found []finding) {
	for _, r := range f.replicas {
		if len(r.Rivals) > 0 {
			return []finding{{fault, "two-policy-stores", "cluster " + f.cluster,
				"replicas follow " + cmp.Or(r.Identity, "a file or a program") + " and " + strings.Join(r.Rivals, ", "),
				"They share limits, and the lower of two rates is in force.",
				"give each policy store a cluster of its own (THROTTLE_CLUSTER), or all replicas one policy store"}}
		}
	}
	return nil
}

// cutOffReplicas are those that a store is unavailable for.
func (f *facts) cutOffReplicas() (found []finding) {
	for _, r := range f.replicas {
		subject := "replica " + r.Replica
		if r.PolicyError != "" && !r.PoliciesHeld {
			found = append(found, finding{fault, "replica-policies", subject, r.PolicyError,
				"Changes of policies do not reach it.", "see that it reaches the policy store: THROTTLE_POLICIES"})
		}
		switch p := r.Permits; {
		case p.Unavailable:
			found = append(found, finding{fault, "replica-permits", subject, "its permit store is unavailable",
				"It shares no limits: onOutage says what it does.",
				"see that it reaches the permit store: THROTTLE_PERMITS"})
		case p.Slow:
			found = append(found, finding{warning, "replica-slow", subject,
				"its requests to the permit store take " + output.Seconds(p.Latency),
				"Limits are shared in longer rounds, and a strict limit gives it one slot in each request.",
				"run it nearer to the permit store, or a permit store nearer to it"})
		}
		if r.Permits.Damaged > 0 {
			found = append(found, finding{hint, "damage", subject,
				fmt.Sprintf("it has found damaged state in the permit store %d times since it started", r.Permits.Damaged),
				"The state was replaced; somebody else writes these keys.",
				"find who else uses the permit store; a restart of the replica clears this"})
		}
	}
	return found
}

func (f *facts) versions() []finding {
	by := map[string][]string{}
	for _, r := range f.replicas {
		by[r.Version] = append(by[r.Version], r.Replica)
	}
	if len(by) < 2 {
		return nil
	}
	var texts []string
	for _, version := range slices.Sorted(maps.Keys(by)) {
		texts = append(texts, fmt.Sprintf("%s in %s", version, cli.Names(by[version])))
	}
	return []finding{{hint, "mixed-versions", "replicas", strings.Join(texts, "; "),
		"Versions share limits as far as the older one knows what is stored.", "finish the rollout"}}
}

// wanted is the revision that replicas should have, and behind how many have an older one.
func (f *facts) wanted() int64 {
	wanted := f.snapshot.Applied
	for _, e := range f.snapshot.Entries {
		wanted = max(wanted, e.Revision)
	}
	return wanted
}

func (f *facts) behind() (n int) {
	for _, r := range f.replicas {
		if f.isBehind(r) {
			n++
		}
	}
	return n
}

// isBehind reports whether a replica that follows the policy store has old policies; why one does
// not follow it is another finding. The record of an idle one may be older than the last change.
func (f *facts) isBehind(r dispatch.Stats) bool {
	return f.isActive(r) && r.Revision < f.wanted()
}

// isActive reports whether a replica follows this policy store and publishes each second.
func (f *facts) isActive(r dispatch.Stats) bool {
	return r.PolicyError == "" && r.Identity == f.snapshot.Marker.ID && len(r.Subscriptions) > 0
}

func (f *facts) revisions() []finding {
	n := f.behind()
	if n == 0 {
		return nil
	}
	var names []string
	active := 0
	for _, r := range f.replicas {
		if f.isActive(r) {
			active++
		}
		if f.isBehind(r) {
			names = append(names, r.Replica)
		}
	}
	return []finding{{warning, "old-policies", "replicas " + cli.Names(names),
		fmt.Sprintf("revision %d is in force in %d of %d replicas that are active", f.wanted(), active-n, active),
		"The others go by older policies.", "see their logs, and restart them"}}
}

// longHeld is how long, in seconds, messages wait in a consumer's memory at most that were read
// ahead of their permits.
const longHeld = 60

func (f *facts) readAhead() (found []finding) {
	type total struct {
		ahead    int64
		rate     float64
		replicas int
	}
	totals := map[place]total{}
	for _, r := range f.replicas {
		for _, s := range r.Subscriptions {
			topic, err := policy.ParseTopic(s.Topic)
			rate := s.MessageRate(1024)
			if err != nil || s.ReadAhead == 0 || rate > 1e15 || rate == 0 {
				continue
			}
			t := totals[place{topic, s.Subscription}]
			totals[place{topic, s.Subscription}] = total{t.ahead + s.ReadAhead, rate, t.replicas + 1}
		}
	}
	for _, p := range f.topics() {
		t := totals[p]
		if held := float64(t.ahead) / t.rate; t.replicas > 0 && held > longHeld {
			found = append(found, finding{warning, "read-ahead", p.subscription + " of " + p.topic.String(),
				fmt.Sprintf("%s read up to %d messages ahead of a limit of %s/s", cli.Count(t.replicas, "replica"), t.ahead,
					output.Number(t.rate)),
				fmt.Sprintf("A message waits up to %s in memory, where acknowledgements time out and no other replica gets it.",
					output.Seconds(held)),
				"open the consumers while the limit is in force, so that the adapter sizes their queues, or set the queue to 1"})
		}
	}
	return found
}

func (f *facts) unknownBacklogs() (found []finding) {
	seen := map[place]bool{}
	for _, r := range f.replicas {
		for _, s := range r.Subscriptions {
			topic, err := policy.ParseTopic(s.Topic)
			p := place{topic, s.Subscription}
			if err != nil || s.Backlog >= 0 || seen[p] || !granted(s) || f.alwaysThrottled(p) {
				continue
			}
			seen[p] = true
			found = append(found, finding{hint, "no-backlog", p.subscription + " of " + p.topic.String(),
				"it has got permits, and reports no backlog in " + r.Replica,
				"It is throttled when it has caught up, too.",
				"have the program call ReportBacklog each second, as the adapters for Kafka and Pulsar do; or, to have it " +
					"always throttled: throttle-admin set " + cli.Quote(policy.TopicScope(topic)) + " caughtUp.throttle=true"})
		}
	}
	return found
}

// granted reports whether a subscription has got permits.
func granted(s dispatch.SubscriptionStats) bool {
	return slices.ContainsFunc(s.Limits, func(l dispatch.LimitStats) bool { return l.Granted > 0 })
}

// alwaysThrottled reports whether limits apply to a subscription whatever its backlog.
func (f *facts) alwaysThrottled(p place) bool {
	e := f.set.Resolve(f.cluster, p.topic, p.subscription)
	return *e.Subscription.WithDefaults().CaughtUp.Throttle
}

func (f *facts) sharedReaders() (found []finding) {
	for _, r := range f.replicas {
		for _, s := range r.Subscriptions {
			if s.Waiting > 0 && len(s.HoldsUp) > 0 {
				found = append(found, finding{warning, "held-up", s.Subscription + " in " + r.Replica,
					fmt.Sprintf("a message of %s waits (%s), and those of %s wait behind it", s.Topic, s.Reason, cli.Names(s.HoldsUp)),
					"One limit throttles all topics of the reader.", "read each topic with a consumer of its own"})
			}
		}
	}
	return found
}
