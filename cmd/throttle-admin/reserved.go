package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/policy"
)

// overReserved says which topics have more reserved than they may dispatch, of those that a scope's policy has to do
// with. It knows the subscriptions that policies name.
func overReserved(cluster string, entries []policy.Entry, scope policy.Scope) string {
	set, _ := policy.NewSet(entries) // what is wrong with it was there before
	named := map[policy.Topic][]string{}
	for _, e := range entries {
		if e.Scope.Kind == policy.SubscriptionKind && e.Err == nil && !slices.Contains(named[e.Scope.Topic], e.Scope.Subscription) {
			named[e.Scope.Topic] = append(named[e.Scope.Topic], e.Scope.Subscription)
		}
	}
	var found []string
	for topic, names := range named {
		if scope.Kind >= policy.TopicKind && scope.Topic != topic {
			continue
		}
		var messages, bytes float64
		for _, name := range names {
			p := set.Resolve(cluster, topic, name).Subscription
			messages += p.Reserved.PerSec()
			bytes += p.ReservedBytes.PerSec()
		}
		limit := set.Resolve(cluster, topic, "").Topic
		for _, c := range []struct {
			unit     string
			reserved float64
			rate     policy.Rate
		}{{"messages", messages, limit.MessageRate}, {"bytes", bytes, limit.ByteRate}} {
			if rate := c.rate.PerSec(); c.rate.Limited() && c.reserved > rate {
				found = append(found, fmt.Sprintf("what is reserved of %s comes to %s %s/s, and its limit is %s/s: each subscription gets %s %% of its own",
					topic, number(c.reserved), c.unit, number(rate), number(100*rate/c.reserved)))
			}
		}
	}
	slices.Sort(found)
	return strings.Join(found, "; ")
}
