package change

import (
	"context"
	"maps"
	"slices"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A consumer is a subscription of a topic or, with an empty name, the topic itself.
type consumer struct {
	topic policy.Topic
	name  string
}

// knownTopics returns the topics and subscriptions that policies name or replicas consume.
func knownTopics(
	ctx context.Context, a *cli.App, lists ...[]policy.Entry,
) map[consumer]bool {
	known := make(map[consumer]bool)
	for _, entries := range lists {
		for _, e := range entries {
			if e.Scope.Kind == policy.TopicKind || e.Scope.Kind == policy.SubscriptionKind {
				known[consumer{e.Scope.Topic, ""}] = true
				known[consumer{e.Scope.Topic, e.Scope.Subscription}] = true
			}
		}
	}
	permits, err := a.OpenPermits()
	if err == nil && permits != nil {
		defer func() { _ = permits.Close() }() // nothing was written
		var replicas []dispatch.Stats
		replicas, err = cli.Published(ctx, permits, a.Cluster)
		for _, r := range replicas {
			for _, s := range r.Subscriptions {
				if t, e := policy.ParseTopic(s.Topic); e == nil {
					known[consumer{t, ""}] = true
					known[consumer{t, s.Subscription}] = true
				}
			}
		}
	}
	if err != nil {
		a.Warn("the topics that replicas consume are not known: %v", err)
	}
	return known
}

// A topicView is a change of one field of the effective policy of a known topic or subscription.
type topicView struct {
	Topic        string `json:"topic"`
	Subscription string `json:"subscription,omitempty"`
	Field        string `json:"field"`
	Before       string `json:"before,omitempty"`
	After        string `json:"after,omitempty"`
}

// affected returns what changes for the known topics and, where that differs, their
// subscriptions.
func affected(cluster string, known map[consumer]bool, from, to []policy.Entry) []topicView {
	before, _ := policy.NewSet(from) // its faults are in the store already, or have been reported
	after, _ := policy.NewSet(to)
	var views []topicView
	scope := func(c consumer) policy.Scope { return policy.SubscriptionScope(c.topic, c.name) }
	consumers := slices.SortedFunc(maps.Keys(known), func(a, b consumer) int {
		return scope(a).Compare(scope(b))
	})
	for _, c := range consumers {
		b, a := before.Resolve(cluster, c.topic, c.name), after.Resolve(cluster, c.topic, c.name)
		for _, f := range policy.PolicySection.Fields() {
			field := f.Name
			topicFrom, topicTo := policy.Text(b.Topic, field), policy.Text(a.Topic, field)
			from, to := topicFrom, topicTo
			if c.name != "" {
				from, to = policy.Text(b.Subscription, field), policy.Text(a.Subscription, field)
				if from == topicFrom && to == topicTo {
					continue // the topic has a row for it
				}
			}
			if from != to {
				views = append(views, topicView{c.topic.String(), c.name, field, from, to})
			}
		}
	}
	return views
}
