package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func strictly(t testing.TB, text string) policy.Policy {
	t.Helper()
	p := rate(t, text)
	p.Sharing.Mode = policy.Strict
	return p
}

// gaps returns the shortest time between two dispatches in [from, to), and their number: of those
// replicas, or of all.
func (f *fleet) gaps(from, to time.Duration, sources ...int) (shortest time.Duration, n int) {
	shortest, last := time.Hour, time.Duration(-1)
	for _, e := range f.dispatched.Events() {
		if e.At < from || e.At >= to || len(sources) > 0 && !slices.Contains(sources, e.Source) {
			continue
		}
		if last >= 0 {
			shortest = min(shortest, e.At-last)
		}
		last = e.At
		n += e.N
	}
	return shortest, n
}

// Strict pacing is one message every period over all callers, in turn.
func TestStrict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate            string
		replicas, loops int
		period          time.Duration
	}{
		{"5/s", 8, 1, 200 * time.Millisecond},
		{"100/s", 8, 1, 10 * time.Millisecond},
		{"1000/s", 10, 10, time.Millisecond},
		{"1/h", 3, 1, time.Hour},
		{"5/s", 1, 20, 200 * time.Millisecond},
	} {
		name := fmt.Sprintf("%s, %d x %d", c.rate, c.replicas, c.loops)
		fleets(t, name, strictly(t, c.rate), func(t *testing.T, f *fleet) {
			for i := range c.replicas {
				r := f.join(i, "group")
				for range c.loops {
					r.greedy(1)
				}
			}
			periods := 300
			if c.period > time.Minute {
				periods = 20
			} else if c.period < 2*time.Millisecond {
				periods = 3000 // fewer would leave the most served replica to chance
			}
			end := time.Duration(periods) * c.period
			time.Sleep(end)
			shortest, n := f.gaps(0, end)
			within(t, "the shortest gap", shortest,
				c.period-min(c.period, 2*time.Millisecond), c.period+time.Millisecond)
			within(t, "calls", n, periods*97/100, periods+1)
			for i := range c.replicas {
				within(t, "a replica's", f.by(i, 0, end), periods/c.replicas*80/100-1, periods/c.replicas*130/100+1)
			}
		})
	}
}

// Idle time is not saved up, and a caller that is alone does not wait.
func TestStrictRemembersNoIdleTime(t *testing.T) {
	fleets(t, "", strictly(t, "10/s"), func(t *testing.T, f *fleet) {
		r := f.join(0, "group")
		for range 5 {
			began := time.Now()
			_, err := r.sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			within(t, "alone", time.Since(began), 0, 6*time.Millisecond)
			time.Sleep(10 * time.Second)
		}
		for i := range 5 {
			began := time.Now()
			_, err := r.sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			if i > 0 {
				within(t, "the next", time.Since(began), 95*time.Millisecond, 110*time.Millisecond)
			}
		}
	})
}

// A caller that leaves gives its slot back if that is the last. Slots allocated ahead are bounded.
func TestStrictCancelsAndIsBounded(t *testing.T) {
	p := strictly(t, "1/s")
	p.Sharing.MaxReserved = new(int64(3))
	fleets(t, "", p, func(t *testing.T, f *fleet) {
		var replicas []*replica
		for i := range 8 {
			replicas = append(replicas, f.join(i, "group"))
		}
		for _, r := range replicas[1:] {
			r.greedy(1)
		}
		time.Sleep(20 * second)
		for _, r := range replicas[1:] {
			r.stop() // each caller holds a slot or waits for a free one
		}
		time.Sleep(10 * time.Millisecond)
		replicas[0].greedy(1)
		stopped := time.Since(f.start)
		time.Sleep(20 * second)
		n := f.by(0, stopped, stopped+20*second)
		within(t, "the others' slots are wasted or given back: three at most", n, 16, 21)
	})
	p.Sharing.MaxReserved = new(int64(0))
	fleets(t, "the pessimistic way", p, func(t *testing.T, f *fleet) {
		for i := range 4 {
			f.join(i, "group").greedy(1)
		}
		time.Sleep(100 * second)
		shortest, n := f.gaps(0, 100*second)
		within(t, "the shortest gap", shortest, 998*time.Millisecond, 2*second)
		within(t, "calls", n, 60, 100)
		for i := range 4 {
			assert.NotZero(t, f.by(i, 0, 100*second), "jitter serves all replicas")
		}
	})
}

// A changed rate is in force at once, and no two calls are nearer than either period allows.
func TestStrictPolicyChange(t *testing.T) {
	for _, c := range []struct {
		from, to      string
		before, after time.Duration
	}{
		{"10/s", "2/s", 100 * time.Millisecond, 500 * time.Millisecond},
		{"2/s", "20/s", 500 * time.Millisecond, 50 * time.Millisecond},
		{"1/h", "10/s", time.Hour, 100 * time.Millisecond},
	} {
		fleets(t, c.from+" to "+c.to, strictly(t, c.from), func(t *testing.T, f *fleet) {
			for i := range 6 {
				f.join(i, "group").greedy(1)
			}
			time.Sleep(10*second + 30*time.Millisecond)
			f.policies.Set(policy.Single(strictly(t, c.to)))
			changed := time.Since(f.start)
			time.Sleep(20 * second)
			shortest, n := f.gaps(changed+100*time.Millisecond, changed+20*second)
			within(t, "the shortest gap", shortest, c.after-2*time.Millisecond, c.after+time.Millisecond)
			expected := int(20 * second / c.after)
			within(t, "calls", n, expected*90/100, expected+1)
		})
	}
}

// The decorators: Do waits, TryDo skips.
func TestStrictTryDo(t *testing.T) {
	fleets(t, "", strictly(t, "10/s"), func(t *testing.T, f *fleet) {
		r := f.join(0, "group")
		ran, skipped := 0, 0
		for range 200 {
			ok, err := r.sub.TryDo(t.Context(), func(context.Context) error { r.record(0, 1); return nil })
			require.NoError(t, err)
			if ok {
				ran++
			} else {
				skipped++
			}
			time.Sleep(20 * time.Millisecond)
		}
		shortest, _ := f.gaps(0, time.Hour)
		within(t, "the shortest gap", shortest, 98*time.Millisecond, 200*time.Millisecond)
		within(t, "of 200 tries in four seconds", ran, 32, 41)
		assert.Zero(t, r.lim.Stats().Subscriptions[0].Limits[0].Expired, "a refusal wastes no slot")
	})
}

// Callers that give up do not use up the line.
func TestStrictImpatience(t *testing.T) {
	fleets(t, "", strictly(t, "10/s"), func(t *testing.T, f *fleet) {
		f.join(0, "group").greedy(1)
		r := f.join(1, "group")
		for range 20 {
			r.wg.Go(func() {
				for r.ctx.Err() == nil {
					ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
					if _, err := r.sub.Acquire(ctx, 1); err == nil {
						r.record(1, 1)
					}
					cancel()
				}
			})
		}
		time.Sleep(60 * second)
		within(t, "together", f.between(0, 60*second), 480, 601)
		within(t, "the patient one, of 21 callers", f.by(0, 0, 60*second), 20, 600)
	})
}

// The slowest of several strict limits paces. The limits allocated beside it waste no slots.
func TestStrictBesideOthers(t *testing.T) {
	strict := func(text string) policy.Policy { return strictly(t, text) }
	allocated := func(text string) policy.Policy { return rate(t, text) }
	for name, c := range map[string]struct {
		topic, tenant policy.Policy
		replicas      int
		least, calls  int // in 60 s
		gap           time.Duration
	}{
		"both strict, the topic slower":  {strict("5/s"), strict("7/s"), 4, 294, 300, 198 * time.Millisecond},
		"both strict, the tenant slower": {strict("10/s"), strict("5/s"), 4, 294, 300, 198 * time.Millisecond},
		"an allocated tenant":            {strict("5/s"), allocated("100/s"), 4, 294, 300, 198 * time.Millisecond},
		"an allocated topic":             {allocated("5/s"), strict("10/s"), 4, 294, 300, 98 * time.Millisecond},
		"slots that are seldom":          {strict("5/s"), strict("6/s"), 8, 294, 300, 198 * time.Millisecond},
	} {
		fleets(t, name, policy.Policy{}, func(t *testing.T, f *fleet) {
			f.policies.Set(set(t, map[string]policy.Policy{topic: c.topic, "tenant:public": c.tenant}))
			for i := range c.replicas {
				f.join(i, "group").greedy(1)
			}
			time.Sleep(60 * second)
			shortest, n := f.gaps(0, 60*second)
			within(t, "calls", n, c.least, c.calls+2)
			within(t, "the shortest gap", shortest, c.gap, time.Second)
		})
	}
}

// TestStrictBesideAny: a strict limit is used in full beside limits of any kind that allow it,
// whatever the number of processes and of their callers. Limits of bytes have many more permits to
// release: the numbers in between are left to THROTTLE_LONG.
func TestStrictBesideAny(t *testing.T) {
	t.Parallel()
	const quick, beside = topic + " messageRate=5 sharing.mode=strict", "\npublic/default aggregate=true messageRate="
	for name, policies := range map[string]string{
		"fair":            quick + beside + "100",
		"hardly faster":   quick + beside + "6",
		"two":             quick + beside + "100\ntenant:public messageRate=10",
		"groups":          quick + beside + "100 sharing.mode=groups sharing.groups=eu,us",
		"split":           quick + beside + "100 sharing.mode=split",
		"strict":          quick + beside + "20 sharing.mode=strict",
		"in flight":       quick + " maxInFlight=2" + beside + "100",
		"bytes":           quick + " byteRate=20000",
		"bytes, and fair": quick + " byteRate=20000" + beside + "20",
		"a quota":         quick + "\nquota tenant:public total=1638400", // of 100 messages a second
		"a quota, bytes":  quick + " byteRate=20000\nquota tenant:public total=327680",
	} {
		for _, replicas := range []int{1, 2, 8} {
			for _, callers := range []int{1, 2, 40} {
				between := replicas == 2 || strings.Contains(policies, "byteRate") && callers == 2
				for _, lost := range []float64{0, 0.03} {
					if (between || lost > 0 && name != "fair") && !permitstest.Long() {
						continue
					}
					how := fmt.Sprintf("%s, %d x %d, %v lost", name, replicas, callers, lost)
					fleets(t, how, policy.Policy{}, func(t *testing.T, f *fleet) {
						f.policies.Set(throttletest.SetOf(t, policies))
						f.store.Locked(func() { f.store.LoseCalls = lost })
						for i := range replicas {
							r := f.joinGroup(i, "group", "eu")
							for range callers {
								r.working(1000, 10*time.Millisecond)
							}
						}
						time.Sleep(25 * second)
						least := 95
						if name == "groups" { // others hold at times what is left of a period
							least = 90
						}
						if lost > 0 { // each lost request costs a slot or two
							least = 80
						}
						within(t, "calls", f.between(5*second, 25*second), least, 101)
					})
				}
			}
		}
	}
}

// working takes a message of that many bytes at a time, and works on it.
func (r *replica) working(size int64, work time.Duration) {
	r.wg.Go(func() {
		for {
			g, err := r.sub.AcquireSized(r.ctx, size)
			if err != nil {
				return
			}
			r.record(r.id, 1)
			time.Sleep(work)
			g.Done(1, size)
		}
	})
}

// maxInFlight counts the calls of TryDo, too, and callers that it delays hold no slots.
func TestStrictInFlight(t *testing.T) {
	p := strictly(t, "10/s")
	p.MaxInFlight = new(int64(1))
	fleets(t, "", p, func(t *testing.T, f *fleet) {
		r, other := f.join(0, "slow"), f.join(1, "other")
		var inFlight, highest atomic.Int64
		slow := func(context.Context) error {
			highest.Store(max(highest.Load(), inFlight.Add(1)))
			time.Sleep(2 * second)
			inFlight.Add(-1)
			return nil
		}
		for i := range 20 {
			r.wg.Go(func() {
				for r.ctx.Err() == nil {
					if i%2 == 0 {
						_ = r.sub.Do(r.ctx, slow) // ends with ctx
					} else if ran, _ := r.sub.TryDo(r.ctx, slow); !ran {
						time.Sleep(30 * time.Millisecond)
					}
				}
			})
		}
		other.wg.Go(func() {
			for other.sub.Do(other.ctx, func(context.Context) error { other.record(1, 1); return nil }) == nil {
			}
		})
		time.Sleep(60 * second)
		assert.EqualValues(t, 1, highest.Load())
		within(t, "the other has what is left", f.by(1, 0, 60*second), 520, 600)
	})
}

// An outage of the permit store stops TryDo alone, too.
func TestStrictTryDoWithoutAPermitStore(t *testing.T) {
	p := strictly(t, "10/s")
	p.OnOutage = policy.OutageOpen
	fleets(t, "open", p, func(t *testing.T, f *fleet) {
		r := f.join(0, "group")
		f.store.Locked(func() { r.link.Cut = true })
		ran := 0
		for range 100 {
			if ok, _ := r.sub.TryDo(t.Context(), func(context.Context) error { return nil }); ok {
				ran++
			}
			time.Sleep(100 * time.Millisecond)
		}
		within(t, "of 100", ran, 90, 100)
		assert.True(t, r.lim.Stats().Permits.Unavailable)
	})
}

// The use that explain shows of a strict limit is the rate of its dispatches.
func TestStrictUse(t *testing.T) {
	fleets(t, "", strictly(t, "20/s"), func(t *testing.T, f *fleet) {
		r := f.join(0, "group")
		r.greedy(1)
		time.Sleep(5 * second)
		within(t, "use", r.lim.Stats().Subscriptions[0].Limits[0].Use, 17, 23)
	})
}

// No two calls are nearer than the period, whatever happens to the store's state and clock.
func TestStrictThroughLosses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate            string
		replicas, loops int
		period, expiry  time.Duration
		quiet           time.Duration // between two faults
	}{
		{"1/6s", 6, 10, 6 * second, 60 * time.Millisecond, 40 * second},
		{"20/s", 8, 2, 50 * time.Millisecond, 2 * time.Millisecond, 4 * second},
	} {
		for _, wait := range []policy.WaitMode{policy.WaitBackoff, policy.WaitQueue} {
			p := strictly(t, c.rate)
			p.Sharing.Wait = wait
			attacked(t, fmt.Sprintf("%s, %s", c.rate, wait), p, func(t *testing.T, f *fleet, rng *rand.Rand) {
				f.store.Sole = false
				for i := range c.replicas {
					r := f.join(i, fmt.Sprint("group ", i%2))
					for range c.loops {
						r.greedy(1)
					}
				}
				for range 12 {
					time.Sleep(c.quiet/2 + time.Duration(rng.Int64N(int64(c.quiet/2))))
					switch fault := rng.IntN(5); fault {
					case 0:
						f.store.Locked(func() { clear(f.store.Limits) })
					case 1:
						old := f.store.Copy()
						time.Sleep(time.Duration(rng.Int64N(int64(second))))
						f.store.Locked(func() { f.store.Limits, f.store.Server = old, f.store.Server+1 })
					case 2, 3:
						// A step of under 20 ms is not noticed.
						step := 25*time.Millisecond + time.Duration(rng.Int64N(int64(10*second)))
						step *= time.Duration(1 - 2*(fault-2))
						f.store.Locked(func() { f.store.Skew += step })
					case 4:
						f.store.Locked(func() {
							f.store.Frozen = time.Now().Add(time.Duration(rng.Int64N(int64(2 * second))))
						})
					}
				}
				end := time.Since(f.start)
				shortest, n := f.gaps(0, end)
				within(t, "the shortest gap", shortest, c.period-c.expiry-time.Millisecond, c.period+c.expiry)
				within(t, "calls", n, int(end/c.period)/3, int(end/c.period)+1)
			})
		}
	}
}

// TestStrictUseOfThree: of three replicas that take turns at one permit every 2 s, each uses a
// third, whenever Stats is called, and no more.
func TestStrictUseOfThree(t *testing.T) {
	t.Parallel()
	p := strictly(t, "1/2s")
	p.Sharing.Wait = policy.WaitQueue
	fleets(t, "", p, func(t *testing.T, f *fleet) {
		var all []*replica
		for i := range 3 {
			all = append(all, f.join(i, "group"))
			all[i].greedy(1)
		}
		time.Sleep(2 * time.Minute)
		mean := 0.0
		for range 200 {
			time.Sleep(700 * time.Millisecond)
			total := 0.0
			for _, r := range all {
				l := r.lim.Stats().Subscriptions[0].Limits[0]
				within(t, "use", l.Use, 0.13, 0.2)
				assert.Zero(t, l.Share, "no replica has a share of its own")
				total += l.Use
			}
			within(t, "the use of all", total, 0.4, 0.6)
			mean += total / 200
		}
		within(t, "the mean use of all", mean, 0.45, 0.55)
	})
}

// A replica that is cut off when it starts gets its part as soon as it is connected.
func TestStrictCutOffAtTheStart(t *testing.T) {
	fleets(t, "", strictly(t, "20/s"), func(t *testing.T, f *fleet) {
		f.join(0, "group").greedy(1)
		time.Sleep(2 * second)
		r := f.join(1, "group")
		f.store.Locked(func() { r.link.Cut = true })
		r.greedy(1)
		time.Sleep(2 * second)
		f.store.Locked(func() { r.link.Cut = false })
		time.Sleep(10 * second)
		within(t, "calls of the one that was cut off", f.by(1, 5*second, 14*second), 60, 120)
	})
}

// Slots that may be used late are confirmed as rarely as others.
func TestStrictLongExpiry(t *testing.T) {
	p := strictly(t, "1/6s")
	p.Sharing.PermitExpiry = policy.Duration(5 * second)
	fleets(t, "", p, func(t *testing.T, f *fleet) {
		f.join(0, "group").greedy(1)
		f.join(1, "group").greedy(1)
		time.Sleep(60 * second)
		within(t, "calls", f.between(0, 60*second), 9, 11)
		within(t, "requests a call", f.requestsPerMessage(), 0, 5)
	})
}

// TestExpired: a Grant of a strict limit expires with its slot, or when the next slot comes before
// that. One of another limit does not.
func TestExpired(t *testing.T) {
	for name, expiry := range map[string]time.Duration{
		"before the next slot": 20 * time.Millisecond, "after the next slot": 10 * second,
	} {
		p := strictly(t, "1/s")
		p.Sharing.PermitExpiry = policy.Duration(expiry)
		fleets(t, name, p, func(t *testing.T, f *fleet) {
			sub := f.join(0, "group").sub
			g, err := sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			require.False(t, g.Expired())
			time.Sleep(min(expiry, second) / 2)
			require.False(t, g.Expired())
			if expiry < second {
				time.Sleep(expiry)
			} else {
				next, err := sub.Acquire(t.Context(), 1)
				require.NoError(t, err)
				require.False(t, next.Expired())
			}
			require.True(t, g.Expired())
			g.Done(0, 0)
			require.False(t, g.Expired())
		})
	}
	fleets(t, "fair", rate(t, "1/s"), func(t *testing.T, f *fleet) {
		g, err := f.join(0, "group").sub.Acquire(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.False(t, g.Expired())
	})
}
