package pulsarthrottle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"

	"github.com/dispatchthrottle/throttle/policy"
)

const (
	pollInterval = time.Second
	pollTimeout  = 2 * time.Second
	pollAtOnce   = 8 // topics that an admin API is asked for at once
)

// A polled is a consumer or reader whose backlog is looked at once a second, while a topic of its has a limit.
type polled struct {
	gate  *gate
	admin pulsaradmin.Client // nil: ends are asked for
	ends  func() ([]end, error)

	asks    int64         // gate.asks at the last look
	asking  chan struct{} // holds a value while ends is under way
	failing bool          // the admin API, at the last look; the poller's
}

// The poller of this process looks after all of them; it runs while there is one.
var poller struct {
	sync.Mutex
	polled map[*polled]bool
	stop   context.CancelFunc
}

func (p *polled) join() {
	p.asking = make(chan struct{}, 1)
	poller.Lock()
	defer poller.Unlock()
	if len(poller.polled) == 0 {
		ctx, stop := context.WithCancel(context.Background())
		poller.polled, poller.stop = map[*polled]bool{}, stop
		go poll(ctx)
	}
	poller.polled[p] = true
}

// leave ends the looks at p. One that is under way may take as long as the client's own time-out, if its broker is away:
// after leaveTimeout it is left alone.
func (p *polled) leave() {
	poller.Lock()
	delete(poller.polled, p)
	if len(poller.polled) == 0 {
		poller.stop()
	}
	poller.Unlock()
	select {
	case p.asking <- struct{}{}: // for good
	case <-time.After(leaveTimeout):
	}
}

const leaveTimeout = time.Second

func poll(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if ctx.Err() == nil {
				look(ctx)
			}
		}
	}
}

// look finds the backlogs of all that have limits.
func look(ctx context.Context) {
	var limited []*polled
	poller.Lock()
	for p := range poller.polled {
		if p.gate.topics.limited() {
			limited = append(limited, p)
		}
	}
	poller.Unlock()
	stats := askAdmins(ctx, limited)
	if ctx.Err() != nil {
		return // all have left; who joins now has a poller of his own
	}
	for _, p := range limited {
		asks := p.gate.asks.Load()
		idle := asks == p.asks && asks%2 == 1 // it asks, as it did then, and nothing has come
		p.asks = asks
		if p.admin == nil || !p.byStats(stats, idle) {
			p.byEnds(idle)
		}
	}
}

// limited reports whether a topic has a limit. One whose topics are not known yet may have some.
func (ts *topics) limited() bool {
	all := ts.all()
	some := len(all) == 0
	for _, t := range all {
		some = t.watch() || some
	}
	return some
}

// watch finds out whether the topic has a limit. A non-persistent one keeps nothing, so there is no backlog to look at: who reads
// it has never caught up.
func (t *topic) watch() bool {
	limited := t.sub != nil && !t.passing() && len(t.sub.Stats().Limits) > 0
	t.watched.Store(limited)
	return limited
}

func (ts *topics) all() (all []*topic) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.topics {
		all = append(all, t)
	}
	return all
}

// passing reports whether the topic is non-persistent.
func (t *topic) passing() bool { return strings.HasPrefix(t.name, policy.NonPersistent+"://") }

// byEnds looks at where the partitions end, which may take its time: nobody waits for it.
func (p *polled) byEnds(idle bool) {
	if slices.ContainsFunc(p.gate.topics.all(), (*topic).passing) {
		return // the broker tells none of the ends then
	}
	select {
	case p.asking <- struct{}{}:
	default: // it is still at the last look, or closed
		return
	}
	now := p.gate.era.Load()
	go func() {
		defer func() { <-p.asking }()
		if ends, err := p.ends(); err == nil && now.Err() == nil { // else the client has said so in its log, and the backlog becomes unknown
			p.gate.topics.conclude(ends, idle)
		}
	}()
}

// A question is what one topic's subscriptions have to read, by one admin API.
type question struct {
	admin pulsaradmin.Client
	topic string
}

type answered struct {
	subscriptions map[string]utils.SubscriptionStats
	err           error
}

// askAdmins asks the admin APIs for all topics that have limits, each once.
func askAdmins(ctx context.Context, limited []*polled) map[question]*answered {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	stats := map[question]*answered{}
	var asking sync.WaitGroup
	slots := make(chan struct{}, pollAtOnce)
	for _, p := range limited {
		if p.admin == nil {
			continue
		}
		for _, t := range p.gate.topics.all() {
			q := question{p.admin, t.name}
			if stats[q] != nil || t.passing() {
				continue
			}
			a := new(answered)
			stats[q] = a
			asking.Go(func() {
				slots <- struct{}{}
				a.subscriptions, a.err = q.ask(ctx)
				<-slots
			})
		}
	}
	asking.Wait()
	return stats
}

// ask returns the subscriptions of a topic; the error names the path that failed.
func (q question) ask(ctx context.Context) (map[string]utils.SubscriptionStats, error) {
	name, err := utils.GetTopicName(q.topic)
	if err != nil {
		return nil, err
	}
	brief := utils.GetStatsOptions{ExcludePublishers: true, ExcludeConsumers: true}
	path := "/admin/v2/" + name.GetRestPath() + "/partitioned-stats"
	partitioned, err := q.admin.Topics().GetPartitionedStatsWithOptionWithContext(ctx, *name, false, brief)
	if err == nil {
		return partitioned.Subscriptions, nil
	}
	var refused rest.Error
	if errors.As(err, &refused) && refused.Code == 404 { // it has no partitions
		path = "/admin/v2/" + name.GetRestPath() + "/stats"
		var stats utils.TopicStats
		if stats, err = q.admin.Topics().GetStatsWithOptionWithContext(ctx, *name, brief); err == nil {
			return stats.Subscriptions, nil
		}
	}
	return nil, fmt.Errorf("GET %s: %w", path, err)
}

// byStats reports the backlogs that an admin API has told; false: it has not, for one topic at least.
func (p *polled) byStats(stats map[question]*answered, idle bool) bool {
	ts := &p.gate.topics
	var failed error
	for _, t := range ts.all() {
		a := stats[question{p.admin, t.name}]
		if a == nil {
			continue // it came in meanwhile
		}
		s, ok := a.subscriptions[ts.subscription]
		switch {
		case a.err != nil:
			failed = errors.Join(failed, a.err)
		case !ok:
			failed = errors.Join(failed, fmt.Errorf("topic %s has no subscription %s", t.name, ts.subscription))
		case idle && !s.BlockedSubscriptionOnUnackedMsgs: // what there is, is with others, or not acknowledged
			t.sub.ReportBacklog(0)
		default:
			t.sub.ReportBacklog(max(0, s.MsgBacklog*max(1, t.batch.Load())-s.UnAckedMessages-s.MsgDelayed))
		}
	}
	if failed != nil && !p.failing {
		ts.log.Warn("pulsarthrottle: the admin API does not tell the backlog; the broker's ends of topics do instead",
			"subscription", ts.subscription, "error", failed)
	} else if failed == nil && p.failing {
		ts.log.Info("pulsarthrottle: the admin API tells the backlog again", "subscription", ts.subscription)
	}
	p.failing = failed != nil
	return failed == nil
}

// endsOf asks a client's consumer where its partitions end. One with a pattern must not be asked: the client goes through its
// consumers then, in a map to which it may be adding what it has just discovered.
func endsOf(c pulsar.Consumer) func() ([]end, error) {
	if fmt.Sprintf("%T", c) == "*pulsar.regexConsumer" {
		return func() ([]end, error) { return nil, nil }
	}
	return func() (ends []end, err error) {
		ids, err := c.GetLastMessageIDs()
		for _, id := range ids {
			ends = append(ends, endOf(id))
		}
		return ends, err
	}
}
