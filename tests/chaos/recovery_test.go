package chaos

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

const (
	never      = 25 * time.Second // recovery of a limit that did not recover; the longest measured
	recentness = 500 * time.Millisecond
)

// recovery waits until each limit is in use by permits of the store, for at most max. It returns
// how long that took from now, by mode; never, of those that did not recover. answers returns how
// many batches or, where these are not counted, answers each replica has got from the store, by
// mode; 0 while the store is unavailable to it. Only what is used from now on counts, and after
// each replica has got something.
func recovery(
	records []*window.Record, answers func() [][replicas]int64, max time.Duration,
) (took []time.Duration) {
	start, before := records[0].Now(), answers()
	stored := make([]time.Duration, len(modes)) // since when the store is in use; 0 = not yet
	took = slices.Repeat([]time.Duration{never}, len(modes))
	for slices.Contains(took, never) && records[0].Now()-start < max {
		time.Sleep(20 * time.Millisecond)
		got, now := answers(), records[0].Now()
		for i, m := range modes {
			if stored[i] == 0 && grown(before[i], got[i]) {
				stored[i] = now
			}
			from := now - recentness
			wanted := 0.9 * float64(m.rate) * recentness.Seconds()
			if took[i] == never && stored[i] > 0 && from >= stored[i] &&
				float64(records[i].Between(from, now)) >= wanted {
				took[i] = from - start
			}
		}
	}
	return took
}

// grown reports whether each replica has got more than before.
func grown(before, got [replicas]int64) bool {
	for i := range got {
		if got[i] <= before[i] {
			return false
		}
	}
	return true
}

// recover is recovery of the fleet.
func (f *fleet) recover(max time.Duration) []time.Duration {
	return recovery(f.records, f.answers, max)
}

// answers are what recovery needs.
func (f *fleet) answers() [][replicas]int64 {
	all := make([][replicas]int64, len(modes))
	for replica, lim := range f.lims {
		store := lim.Stats().Permits
		if store.Unavailable {
			continue
		}
		for i, m := range modes {
			all[i][replica] = store.Requests - store.Errors
			if m.sharing != policy.Split {
				all[i][replica] = f.subs[replica][i].Stats().Limits[0].Allocations
			}
		}
	}
	return all
}

// failed is how many requests have failed.
func (f *fleet) failed() (n int64) {
	for _, lim := range f.lims {
		n += lim.Stats().Permits.Errors
	}
	return n
}

// TestRecovery: a limit has recovered when it is in use, and by permits of the store.
func TestRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := make([]*window.Record, len(modes))
		for i, m := range modes {
			records[i] = window.NewRecord()
			records[i].Add(0, 10*m.rate) // before now
		}
		time.Sleep(100 * time.Millisecond)
		go func() {
			for now := time.Duration(0); now < 4*time.Second; now += 50 * time.Millisecond {
				for i, m := range modes {
					if i != 2 && (i != 3 || now >= 2*time.Second) {
						records[i].Add(0, m.rate/20)
					}
				}
				time.Sleep(50 * time.Millisecond)
			}
		}()
		n := int64(0)
		answers := func() [][replicas]int64 {
			n++
			return [][replicas]int64{
				{n, n, n, n},
				{n, n, n, 0}, // the store is unavailable to one
				{n, n, n, n}, // the limit is not in use
				{n, n, n, n}, // not before two seconds have passed
			}
		}
		took := recovery(records, answers, 5*time.Second)
		assert.InDelta(t, 0.02, took[0].Seconds(), 0.05)
		assert.Equal(t, never, took[1])
		assert.Equal(t, never, took[2])
		assert.InDelta(t, 2, took[3].Seconds(), 0.1)
	})
}

// TestNoRecovery: while the store stays away, no limit recovers, although some are in use.
func TestNoRecovery(t *testing.T) {
	server := services.RedisServer(t)
	f := start(t, server.URL+"?timeout=10s")
	defer f.end()
	server.Kill()
	for i, took := range f.recover(2 * time.Second) {
		assert.Equal(t, never, took, modes[i].sharing)
	}
}
