package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/console"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A row is a row of the live table.
type row struct {
	group   *group
	rate    float64 // messages received in the last second
	share   float64 // of the messages of all groups
	backlog int64
	groupState
}

// state returns the state of the group.
func (r row) state() string {
	switch {
	case r.caughtUp == r.replicas:
		return "caught up"
	case r.caughtUp > 0:
		return "catching up"
	case r.waiting:
		return "throttled"
	}
	return "not throttled"
}

// why returns the reason of the state.
func (r row) why(limit policy.Rate) string {
	switch {
	case r.caughtUp == r.replicas:
		return "no backlog"
	case r.caughtUp > 0:
		return fmt.Sprintf("no backlog in %d of %d replicas", r.caughtUp, r.replicas)
	case !r.waiting:
		return "below the limit"
	case r.reason == dispatch.ReasonMessages:
		return "limited to its share of " + limit.String()
	}
	return "limited by: " + string(r.reason)
}

// A stage is a time with one limit, in which all groups were throttled.
type stage struct {
	limit      policy.Rate
	start, end time.Time
}

// A show is a running live demo.
type show struct {
	*demo
	*world
	*fleet
	screen *screen

	start   time.Time
	limit   policy.Rate // in force
	stages  []stage     // the last one is running while its end is zero
	levelAt map[*group]time.Time
	changed bool
	rows    []row
}

// The course of the live demo: alerts has no backlog at about 0.7 of the duration, billing just
// before the end.
const (
	changeAt       = 0.5  // when the limit is doubled, as a part of the duration
	billingBacklog = 0.90 // as a part of what the limit allows in the duration
	alertsBacklog  = 0.42
	produced       = 0.1 // rate of the producer, as a part of the limit
)

// show runs the live demo. Ctrl-C ends it without an error.
func (d *demo) show(ctx context.Context) (err error) {
	s := &show{
		demo: d, limit: d.limit, levelAt: map[*group]time.Time{},
		screen: newScreen(d.app.Stdout, d.plain),
	}
	defer s.screen.Close()
	unlessOver := func(err error) error {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	s.screen.say("policies: %s   permits: %s   broker: %s",
		place(d.policies, "an etcd in this process"),
		placeOfPermits(d), place(cmp.Or(d.kafka, d.pulsar), "a Kafka in this process"))
	if d.clients {
		s.screen.say("clients: franz-go in %s, kafka-go in the other group", franzGroup)
	}
	whole := d.limit.PerSec() * d.duration.Seconds()
	begin := map[string]int{"alerts": int(whole * alertsBacklog)}
	s.world, err = d.openWorld(ctx, int(whole*billingBacklog), begin)
	defer func() { err = errors.Join(err, s.world.Close()) }()
	var revision int64
	if err == nil {
		revision, err = s.setRate(ctx, d.limit)
	}
	if err != nil {
		return unlessOver(err)
	}
	s.fleet, err = openFleet(ctx, s.world)
	defer func() { err = errors.Join(err, s.fleet.Close()) }()
	if err == nil {
		s.screen.say("backlog of %s: billing %d, alerts %d messages",
			s.full, s.groups[0].backlog(), s.groups[1].backlog())
		if d.console != "" {
			err = s.serveConsole(ctx)
		}
		if err == nil {
			err = s.join(ctx)
		}
	}
	if err != nil {
		return unlessOver(err)
	}
	s.start = time.Now()
	s.stages = []stage{{limit: d.limit, start: s.start}}
	s.event("set-msg-rate %s %s: revision %d", s.full, d.limit, revision)
	err = s.run(ctx)
	s.screen.end()
	if err = unlessOver(err); err == nil {
		s.summary()
	}
	return err
}

// serveConsole shows the world in a browser until it is closed.
func (s *show) serveConsole(ctx context.Context) error {
	permits, err := s.openPermits()
	if err != nil {
		return err
	}
	s.onClose(permits.Close)
	app := &cli.App{
		Cluster: s.cluster, PoliciesURL: s.policiesURL, PermitsURL: s.permitsURL(s.permits), Output: "table",
	}
	at, stop, err := console.Serve(ctx, app, permits, s.console)
	if err != nil {
		return err
	}
	s.onClose(func() error { stop(); return nil })
	s.screen.say("console: http://%s", at)
	return nil
}

// place describes the service at a URL; own is the one in this process. It does not show the URL,
// which may have a password.
func place(url, own string) string {
	if url != "" {
		return "yours"
	}
	return own
}

func placeOfPermits(d *demo) string {
	switch {
	case d.permits == inMemory:
		return "in memory"
	case d.permits == "" && d.policies == "":
		return "the same etcd"
	}
	return "yours"
}

// event shows an event.
func (s *show) event(format string, args ...any) {
	s.screen.event(time.Since(s.start), fmt.Sprintf(format, args...))
}

// run runs the demo to its end, with a producer in the background.
func (s *show) run(ctx context.Context) error {
	producing, stop := context.WithCancel(ctx)
	wrong := make(chan error, 1)
	var producer sync.WaitGroup
	defer producer.Wait()
	defer stop() // runs first
	producer.Go(func() {
		wrong <- s.produce(producing, produced*s.demo.limit.PerSec(), func(ends [lanes]int64) {
			for _, g := range s.groups {
				g.wrote(ends)
			}
		})
	})
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	end := s.start.Add(s.duration)
	for last := s.start; ; {
		select {
		case <-ctx.Done():
			s.endStage(last)
			return context.Cause(ctx)
		case err := <-s.failed:
			return err
		case err := <-wrong:
			return err
		case <-ticker.C:
		}
		now := time.Now()
		s.look(last, now)
		if !s.changed && now.Sub(s.start).Seconds() >= changeAt*s.duration.Seconds() {
			s.changed = true
			if err := s.change(ctx); err != nil {
				return err
			}
		}
		s.screen.draw(now.Sub(s.start), s.limit, s.rows)
		if now.After(end) {
			s.endStage(last)
			return nil
		}
		last = now
	}
}

// look updates the rows, and shows events for what has changed since the last call.
func (s *show) look(last, now time.Time) {
	s.rows = s.rows[:0]
	second := now.Add(-time.Second)
	total := float64(s.count(second, now, s.groups...))
	for _, g := range s.groups {
		r := row{
			group: g, rate: float64(s.count(second, now, g)), backlog: g.backlog(),
			groupState: s.fleet.state(g),
		}
		if total > 0 {
			r.share = r.rate / total
		}
		s.rows = append(s.rows, r)
		if r.exempt > 0 {
			s.endStage(last) // from now on, not all messages are limited
		}
		if r.caughtUp == r.replicas && s.levelAt[g].IsZero() {
			s.levelAt[g] = now
			s.event("%s has caught up (backlog %d): not throttled, not charged", g.name, r.backlog)
		}
		if r.caughtUp == 0 && !s.levelAt[g].IsZero() {
			delete(s.levelAt, g)
			s.event("%s has a backlog again (%d): throttled", g.name, r.backlog)
		}
	}
}

func (s *show) endStage(at time.Time) {
	if st := &s.stages[len(s.stages)-1]; st.end.IsZero() {
		st.end = at
	}
}

// change doubles the limit.
func (s *show) change(ctx context.Context) error {
	doubled := s.demo.limit
	doubled.Permits *= 2
	s.endStage(time.Now())
	revision, err := s.setRate(ctx, doubled)
	if err != nil {
		return err
	}
	set := time.Now()
	if err := s.inForce(ctx, revision); err != nil {
		return err
	}
	s.limit = doubled
	s.event("set-msg-rate %s %s: in force everywhere within %s", s.full, doubled,
		time.Since(set).Truncate(time.Millisecond)+time.Millisecond)
	s.stages = append(s.stages, stage{limit: doubled, start: time.Now()})
	return nil
}

// summary shows the totals.
func (s *show) summary() {
	s.screen.say("\nMessages that the consumers received:\n")
	for _, st := range s.stages {
		seconds := st.end.Sub(st.start).Seconds()
		if seconds < 1 {
			continue
		}
		n := s.count(st.start, st.end, s.groups...)
		rate := float64(n) / seconds
		s.screen.say("  limit %-8s %7d messages in %4.1f s = %7.1f/s (%.1f %%); "+
			"at most %d in any second", st.limit, n, seconds, rate, 100*rate/st.limit.PerSec(),
			s.maxWindow(st.start, st.end))
		for _, g := range s.groups {
			own := s.count(st.start, st.end, g)
			s.screen.say("    %-14s %6d messages = %.1f %%",
				g.name, own, 100*float64(own)/float64(max(1, n)))
		}
	}
	end := time.Now()
	for _, g := range s.groups {
		if at, ok := s.levelAt[g]; ok {
			s.screen.say("  %s caught up after %.1f s, and was not throttled after that",
				g.name, at.Sub(s.start).Seconds())
		} else {
			s.screen.say("  %s has a backlog of %d messages left", g.name, g.backlog())
		}
	}
	n := s.count(time.Time{}, end, s.groups...)
	s.screen.say("  %d requests to the permit store for %d messages", s.requests(), n)
}
