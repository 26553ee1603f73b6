package hour

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/chaos/hour/journal"
	"github.com/dispatchthrottle/throttle/tests/tables"
)

// TestHour plays the plan of a seed, and then lets all messages be delivered. THROTTLE_CHAOS is how
// long, THROTTLE_CHAOS_SEED the seed; with THROTTLE_CHAOS_REPORT=FILE it writes its report into a
// document.
func TestHour(t *testing.T) {
	text, seed := os.Getenv("THROTTLE_CHAOS"), uint64(1)
	if text == "" {
		t.Skip("takes long: make chaos")
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "THROTTLE_CHAOS")
	if s := os.Getenv("THROTTLE_CHAOS_SEED"); s != "" {
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "THROTTLE_CHAOS_SEED")
	}
	net, err := newNetwork(t)
	require.NoError(t, err, "make chaos needs network namespaces, that is root and iproute2")
	s := newScene(t, net)
	s.produceAlways(t.Context(), func(stop func()) {
		s.ready()
		start := time.Now()
		s.play(t.Context(), Plan(seed, d))
		time.Sleep(time.Until(start.Add(d)))
		stop()
		end := time.Now()
		s.drain()
		r := s.report(seed, d, start, end)
		t.Log("\n" + r.String())
		r.check(t)
		if file := os.Getenv("THROTTLE_CHAOS_REPORT"); file != "" && !t.Failed() {
			assert.NoError(t, tables.Write(file, "chaos", []byte(r.String())))
		}
	})
}

// clock is the format of times in the log.
const clock = "15:04:05.000"

// produceAlways produces until f stops it.
func (s *scene) produceAlways(ctx context.Context, f func(stop func())) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var producers sync.WaitGroup
	producers.Go(func() { s.produceKafka(ctx) })
	producers.Go(func() { s.producePulsar(ctx) })
	f(func() {
		cancel()
		producers.Wait()
	})
}

// ready waits until each group gets messages.
func (s *scene) ready() {
	for g := range groups {
		require.Eventually(s.t, func() bool {
			n := 0
			for _, session := range s.sessions(g) {
				n += len(session.Deliveries)
			}
			return n > 100
		}, time.Minute, 100*time.Millisecond, "%s gets no messages", groupNames[g])
	}
}

// drain lifts the limits, and waits until all groups have got all messages.
func (s *scene) drain() {
	for _, l := range s.limits {
		require.NoError(s.t, s.limit(l, 100_000))
	}
	for _, g := range []int{kafkaBare, pulsarBare} {
		for _, w := range s.workers[g] {
			w.stop()
			w.args = append(w.args, "-pace", "0")
			w.start()
		}
	}
	last := 0
	for progress := time.Now(); time.Since(progress) < time.Minute; time.Sleep(2 * time.Second) {
		missing, n := 0, 0
		for g := range groups {
			v := journal.Subscription{Produced: s.ids(g), Sessions: s.sessions(g)}.Check()
			missing, n = missing+len(v.Lost), n+v.Deliveries
		}
		if missing == 0 {
			return
		}
		if n != last {
			last, progress = n, time.Now()
		}
	}
}

// report checks the journals, of which the rates are those between start and end.
func (s *scene) report(seed uint64, d time.Duration, start, end time.Time) report {
	r := report{seed: seed, d: d, done: s.done}
	for g := range groups {
		sessions := s.sessions(g)
		sub := journal.Subscription{
			Produced: s.ids(g), Sessions: sessions, Rewinds: s.rewinds[g],
			Failover: g == pulsarThrottled || g == pulsarBare,
		}
		for _, w := range s.workers[g] {
			sub.Left = append(sub.Left, w.left...)
		}
		r.verdicts[g] = sub.Check()
		for _, session := range sessions {
			for _, d := range session.Deliveries {
				if start.UnixNano() <= d.At && d.At <= end.UnixNano() {
					r.delivered[g]++
				}
			}
		}
	}
	for _, l := range s.limits {
		var at []int64
		for _, g := range l.groups {
			for _, session := range s.sessions(g) {
				for _, d := range session.Deliveries {
					if start.UnixNano() <= d.At && d.At <= end.UnixNano() {
						at = append(at, d.At)
					}
				}
			}
		}
		slices.Sort(at)
		h := held{limit: l}
		h.regular, h.outage = journal.Highest(at, l.rates, s.outages)
		for _, second := range []journal.Second{h.regular, h.outage} {
			s.t.Logf("%s: highest second until %v: %+v", l.name, time.Unix(0, second.End).Format(clock), second)
		}
		r.limits = append(r.limits, h)
	}
	return r
}
