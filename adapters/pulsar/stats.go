package pulsarthrottle

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"

	"github.com/dispatchthrottle/throttle/adapters/internal/backlog"
)

// maxStatsRequests is how many requests a poll sends to admin APIs at a time.
const maxStatsRequests = 8

// A question asks an admin API for the subscriptions of a topic.
type question struct {
	admin pulsaradmin.Client
	topic string
}

type answer struct {
	subscriptions map[string]utils.SubscriptionStats
	err           error
}

// askAdmins asks the admin APIs for the topics of members, each topic once.
func askAdmins(ctx context.Context, members []*polled) map[question]*answer {
	ctx, cancel := context.WithTimeout(ctx, backlog.Timeout)
	defer cancel()
	answers := map[question]*answer{}
	var requests sync.WaitGroup
	slots := make(chan struct{}, maxStatsRequests)
	for _, p := range members {
		if p.admin == nil {
			continue
		}
		for _, t := range p.stream.topics.all() {
			q := question{p.admin, t.name}
			if answers[q] != nil || t.nonPersistent() {
				continue
			}
			a := new(answer)
			answers[q] = a
			requests.Go(func() {
				slots <- struct{}{}
				a.subscriptions, a.err = q.ask(ctx)
				<-slots
			})
		}
	}
	requests.Wait()
	return answers
}

// ask returns the subscriptions of a topic. The error names the path that failed.
func (q question) ask(ctx context.Context) (map[string]utils.SubscriptionStats, error) {
	name, err := utils.GetTopicName(q.topic)
	if err != nil {
		return nil, err
	}
	brief := utils.GetStatsOptions{ExcludePublishers: true, ExcludeConsumers: true}
	topics := q.admin.Topics()
	path := "/admin/v2/" + name.GetRestPath() + "/partitioned-stats"
	partitioned, err := topics.GetPartitionedStatsWithOptionWithContext(ctx, *name, false, brief)
	if err == nil {
		return partitioned.Subscriptions, nil
	}
	var refused rest.Error
	if errors.As(err, &refused) && refused.Code == 404 { // the topic has no partitions
		path = "/admin/v2/" + name.GetRestPath() + "/stats"
		var stats utils.TopicStats
		if stats, err = topics.GetStatsWithOptionWithContext(ctx, *name, brief); err == nil {
			return stats.Subscriptions, nil
		}
	}
	return nil, fmt.Errorf("GET %s: %w", path, err)
}

// byStats reports the backlogs that the admin API has answered. It returns false if the backlog of
// a topic is missing.
func (p *polled) byStats(answers map[question]*answer, idle bool) bool {
	ts := &p.stream.topics
	var failed error
	for _, t := range ts.all() {
		a := answers[question{p.admin, t.name}]
		if a == nil {
			continue // the topic is new
		}
		s, ok := a.subscriptions[ts.subscription]
		switch {
		case a.err != nil:
			failed = errors.Join(failed, a.err)
		case !ok:
			failed = errors.Join(failed,
				fmt.Errorf("topic %s has no subscription %s", t.name, ts.subscription))
		case idle && !s.BlockedSubscriptionOnUnackedMsgs: // the rest is with other consumers
			t.sub.ReportBacklog(0)
		default:
			messages := s.MsgBacklog * max(1, t.batch.Load())
			t.sub.ReportBacklog(max(0, messages-s.UnAckedMessages-s.MsgDelayed))
		}
	}
	if failed != nil && !p.adminFailed {
		ts.log.Warn("pulsarthrottle: the admin API does not return the backlog;"+
			" the ends of topics are used instead",
			"subscription", ts.subscription, "error", failed)
	} else if failed == nil && p.adminFailed {
		ts.log.Info("pulsarthrottle: the admin API returns the backlog again",
			"subscription", ts.subscription)
	}
	p.adminFailed = failed != nil
	return failed == nil
}
