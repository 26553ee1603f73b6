package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A row is a group as the table shows it.
type row struct {
	group   *group
	rate    float64 // messages received in the last second
	share   float64 // of what all groups received
	backlog int64
	groupState
}

// state and why say what a group is up to.
func (r row) state() string {
	switch {
	case r.caughtUp == r.processes:
		return "caught up"
	case r.caughtUp > 0:
		return "catching up"
	case r.waiting:
		return "throttled"
	}
	return "flowing"
}

func (r row) why(limit policy.Rate) string {
	switch {
	case r.caughtUp == r.processes:
		return "level with its producer"
	case r.caughtUp > 0:
		return fmt.Sprintf("level in %d of %d processes", r.caughtUp, r.processes)
	case !r.waiting:
		return "no message has to wait"
	case r.reason == dispatch.ReasonMessages:
		return "waits for its part of " + limit.String()
	}
	return "waits: " + string(r.reason)
}

// A stage is a time in which one limit held for all groups.
type stage struct {
	limit      policy.Rate
	start, end time.Time
}

// A show is the live demo under way.
type show struct {
	*demo
	*world
	*fleet
	screen *screen

	start   time.Time
	limit   policy.Rate // in force
	stages  []stage     // the last one is under way while its end is zero
	levelAt map[*group]time.Time
	changed bool
	rows    []row
}

// How the live demo goes, in parts of its duration and of what the limit lets through in it: one group
// catches up at about 0.7, the other just before the end.
const (
	changeAt      = 0.5
	billingBegins = 0.90
	alertsBegins  = 0.42
	produced      = 0.1 // of the limit
)

// show runs the live demo. Ctrl-C is the usual way out, and no error.
func (d *demo) show(ctx context.Context) (err error) {
	s := &show{demo: d, limit: d.limit, levelAt: map[*group]time.Time{}, screen: newScreen(d.app.Stdout, d.plain)}
	defer s.screen.Close()
	unlessOver := func(err error) error {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	s.screen.say("policies: %s   permits: %s   broker: %s", place(d.store, "an etcd in this process"),
		placeOfPermits(d), place(cmp.Or(d.kafka, d.pulsar), "a Kafka in this process"))
	whole := d.limit.PerSec() * d.duration.Seconds()
	s.world, err = d.openWorld(ctx, int(whole*billingBegins), map[string]int{"alerts": int(whole * alertsBegins)})
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
		s.screen.say("backlog of %s: billing %d, alerts %d messages", s.full, s.groups[0].backlog(), s.groups[1].backlog())
		err = s.join(ctx)
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

// place is a URL's, or our own; not the URL itself, which may hold a password.
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
	case d.permits == "" && d.store == "":
		return "the same"
	}
	return "yours"
}

// event says what has happened.
func (s *show) event(format string, args ...any) {
	s.screen.event(time.Since(s.start), fmt.Sprintf(format, args...))
}

// run plays the demo to its end, with a producer going on in the background.
func (s *show) run(ctx context.Context) error {
	producing, stop := context.WithCancel(ctx)
	wrong := make(chan error, 1)
	var producer sync.WaitGroup
	defer producer.Wait()
	defer stop() // runs first
	producer.Go(func() {
		wrong <- s.produce(producing, produced*s.demo.limit.PerSec(), func(ends [demoLanes]int64) {
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

// look notes what the groups do now, and what has changed since the last look.
func (s *show) look(last, now time.Time) {
	s.rows = s.rows[:0]
	second := now.Add(-time.Second)
	total := float64(s.count(second, now, s.groups...))
	for _, g := range s.groups {
		r := row{group: g, rate: float64(s.count(second, now, g)), backlog: g.backlog(), groupState: s.fleet.state(g)}
		if total > 0 {
			r.share = r.rate / total
		}
		s.rows = append(s.rows, r)
		if r.exempt > 0 {
			s.endStage(last) // from here on the limit is not all that counts
		}
		if r.caughtUp == r.processes && s.levelAt[g].IsZero() {
			s.levelAt[g] = now
			s.event("%s has caught up, %d messages behind the producer: let through, nothing charged", g.name, r.backlog)
		}
		if r.caughtUp == 0 && !s.levelAt[g].IsZero() {
			delete(s.levelAt, g)
			s.event("%s is behind again, by %d messages: throttled", g.name, r.backlog)
		}
	}
}

func (s *show) endStage(at time.Time) {
	if st := &s.stages[len(s.stages)-1]; st.end.IsZero() {
		st.end = at
	}
}

// change doubles the limit while messages flow.
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
	s.event("set-msg-rate %s %s: in force everywhere within %s", s.full, doubled, time.Since(set).Truncate(time.Millisecond)+time.Millisecond)
	s.stages = append(s.stages, stage{limit: doubled, start: time.Now()})
	return nil
}

// summary says what was seen.
func (s *show) summary() {
	s.screen.say("\nWhat the readers received, counted where they came out of the adapter:\n")
	for _, st := range s.stages {
		seconds := st.end.Sub(st.start).Seconds()
		if seconds < 1 {
			continue
		}
		n := s.count(st.start, st.end, s.groups...)
		s.screen.say("  limit %-8s %7d messages in %4.1f s = %7.1f/s (%.1f %%); most in any second %d",
			st.limit, n, seconds, float64(n)/seconds, 100*float64(n)/seconds/st.limit.PerSec(), s.maxWindow(st.start, st.end))
		for _, g := range s.groups {
			s.screen.say("    %-14s %6d messages = %.1f %%", g.name, s.count(st.start, st.end, g), 100*float64(s.count(st.start, st.end, g))/float64(max(1, n)))
		}
	}
	end := time.Now()
	for _, g := range s.groups {
		if at, ok := s.levelAt[g]; ok {
			s.screen.say("  %s caught up after %.1f s, and was not throttled from then on", g.name, at.Sub(s.start).Seconds())
		} else {
			s.screen.say("  %s still has %d messages to read", g.name, g.backlog())
		}
	}
	n := s.count(time.Time{}, end, s.groups...)
	s.screen.say("  the permit store was asked %d times for %d messages", s.requests(), n)
}
