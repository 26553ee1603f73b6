package change

import (
	"context"
	"maps"
	"slices"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A reader is a subscription of a topic, or with an empty name the topic itself.
type reader struct {
	topic policy.Topic
	name  string
}

// knownTopics returns those that entries name and those that replicas read.
func knownTopics(ctx context.Context, a *cli.App, lists ...[]policy.Entry) map[reader]bool {
	known := make(map[reader]bool)
	for _, entries := range lists {
		for _, e := range entries {
			if e.Scope.Kind == policy.TopicKind || e.Scope.Kind == policy.SubscriptionKind {
				known[reader{e.Scope.Topic, ""}] = true
				known[reader{e.Scope.Topic, e.Scope.Subscription}] = true
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
					known[reader{t, ""}] = true
					known[reader{t, s.Subscription}] = true
				}
			}
		}
	}
	if err != nil {
		a.Warn("topics that only replicas know are missing: %v", err)
	}
	return known
}

// A topicView is what a change would do to one field of a known topic or subscription.
type topicView struct {
	Topic        string `json:"topic"`
	Subscription string `json:"subscription,omitempty"`
	Field        string `json:"field"`
	Before       string `json:"before,omitempty"`
	After        string `json:"after,omitempty"`
}

// touched returns what becomes of the known topics and, where that differs, of their subscriptions.
func touched(cluster string, known map[reader]bool, from, to []policy.Entry) []topicView {
	before, _ := policy.NewSet(from) // what is wrong with it was there before, or was refused
	after, _ := policy.NewSet(to)
	var views []topicView
	readers := slices.SortedFunc(maps.Keys(known), func(a, b reader) int {
		return policy.SubscriptionScope(a.topic, a.name).Compare(policy.SubscriptionScope(b.topic, b.name))
	})
	for _, r := range readers {
		b, a := before.Resolve(cluster, r.topic, r.name), after.Resolve(cluster, r.topic, r.name)
		for field := range policy.Fields() {
			topicFrom, topicTo := output.Field(b.Topic, field), output.Field(a.Topic, field)
			from, to := topicFrom, topicTo
			if r.name != "" {
				from, to = output.Field(b.Subscription, field), output.Field(a.Subscription, field)
				if from == topicFrom && to == topicTo {
					continue // said of the topic
				}
			}
			if from != to {
				views = append(views, topicView{r.topic.String(), r.name, field, from, to})
			}
		}
	}
	return views
}
