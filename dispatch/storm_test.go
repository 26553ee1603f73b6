package dispatch_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// storm opens 1,000 handles a second, of subscriptions by these names, and closes each after use.
func (r *replica) storm(name func(i int) string, use func(*dispatch.Subscription)) {
	r.wg.Go(func() {
		for i := 0; r.ctx.Err() == nil; i++ {
			time.Sleep(time.Millisecond)
			r.wg.Go(func() {
				if sub, err := r.lim.Subscription(topic, name(i)); assert.NoError(r.t, err) {
					use(sub)
					assert.NoError(r.t, sub.Close())
				}
			})
		}
	})
}

// TestStorms: handles that are opened, refused once and closed take nothing from those that work,
// be they of one subscription or of ever new ones. Nor do many of them make many requests.
func TestStorms(t *testing.T) {
	t.Parallel()
	names := map[string]func(i int) string{
		"of those that work": func(int) string { return "group" },
		"of another":         func(int) string { return "storm" },
		"of ever new ones":   func(i int) string { return fmt.Sprint("storm ", i) },
	}
	for _, c := range []struct {
		handles  string
		rate     int64
		lives    time.Duration
		beside   bool    // others work in the process, too
		least    int     // percent of the limit, for those that work
		requests float64 // most, for a message of an eighth of the limit
	}{
		{"of those that work", 1000, time.Millisecond, true, 99, 0.3},
		{"of another", 1000, time.Millisecond, false, 99, 0.3},
		{"of another", 10, time.Millisecond, false, 80, 3},
		{"of ever new ones", 1000, 0, false, 99, 0.3},
		{"of ever new ones", 1000, time.Millisecond, true, 99, 0.3},
		{"of ever new ones", 1000, 10 * time.Millisecond, false, 99, 0.3},
		{"of ever new ones", 1000, 10 * time.Millisecond, true, 99, 0.3},
		{"of ever new ones", 1000, 100 * time.Millisecond, false, 97, 0.9}, // a hundred are open
		{"of ever new ones", 100, 10 * time.Millisecond, true, 70, 3},
		{"of ever new ones", 10, 10 * time.Millisecond, true, 25, 10}, // ten hold a permit each
	} {
		how := fmt.Sprintf("%s, that live %v, %d a second, beside others: %v", c.handles, c.lives, c.rate, c.beside)
		fleets(t, how, perSecond(c.rate), func(t *testing.T, f *fleet) {
			for i := range 8 {
				f.join(i, "group")
			}
			for _, r := range f.joined[1:] {
				r.greedy(1)
			}
			process := f.joined[0]
			if c.beside {
				process.greedy(1)
			}
			time.Sleep(second)
			process.storm(names[c.handles], func(sub *dispatch.Subscription) {
				if g, _, ok := sub.TryAcquire(1); ok {
					g.Done(0, 0)
				}
				time.Sleep(c.lives)
			})
			time.Sleep(5 * second)
			all, sent := int(c.rate)*5, 0
			process.store.Locked(func() { sent = process.link.Sent })
			within(t, "those that work", f.between(second, 6*second), all*c.least/100, all*101/100+1)
			within(t, "requests of the process", float64(sent), 0, c.requests*float64(all/8))
			// Permits that handles give back late are used at once.
			within(t, "any second", f.window(second, second), 0, int(c.rate)*104/100+6)
		})
	}
}

// TestStormsThatWait: callers of ever new subscriptions that wait for a moment leave what they were
// allocated too late to the next.
func TestStormsThatWait(t *testing.T) {
	t.Parallel()
	for _, waits := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
		fleets(t, waits.String(), perSecond(1000), func(t *testing.T, f *fleet) {
			for i := range 8 {
				f.join(i, "group").greedy(1)
			}
			time.Sleep(second)
			var got atomic.Int64
			process := f.joined[0]
			process.storm(func(i int) string { return fmt.Sprint("storm ", i) }, func(sub *dispatch.Subscription) {
				ctx, cancel := context.WithTimeout(process.ctx, waits)
				defer cancel()
				if g, err := sub.Acquire(ctx, 1); err == nil {
					got.Add(int64(g.N()))
				}
			})
			time.Sleep(5 * second)
			work := f.between(second, 6*second)
			within(t, "those that work", work, 2000, 5100)
			within(t, "all", work+int(got.Load()), 3500, 5100)
			within(t, "requests a message", f.requestsPerMessage(), 0, 2)
		})
	}
}
