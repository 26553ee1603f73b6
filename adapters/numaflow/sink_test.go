package numaflowthrottle_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sinker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// sinkDatum is a datum of a sink.
type sinkDatum struct{ datum }

func (sinkDatum) UserMetadata() *sinker.UserMetadata     { return nil }
func (sinkDatum) SystemMetadata() *sinker.SystemMetadata { return nil }

// A call is one of a user's sink.
type call struct {
	at  time.Duration // since the test began
	ids []string
}

func wrapped(t *testing.T, lim *dispatch.Limiter, s sinker.SinkerFunc) sinker.Sinker {
	t.Helper()
	wrapped, err := numaflowthrottle.Sink(s, lim, numaflowthrottle.WithTopic(topic), quiet)
	require.NoError(t, err)
	return wrapped
}

// recorder is a user's sink that takes so long for a call.
func recorder(calls *[]call, takes time.Duration) sinker.SinkerFunc {
	begin := time.Now()
	return func(_ context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
		c := call{at: time.Since(begin)}
		for d := range in {
			c.ids = append(c.ids, d.ID())
			responses = append(responses, sinker.ResponseOK(d.ID()))
		}
		*calls = append(*calls, c)
		time.Sleep(takes)
		return responses
	}
}

// batch is what the data plane sends: data from..to-1.
func batch(from, to int) <-chan sinker.Datum {
	c := make(chan sinker.Datum)
	go func() {
		defer close(c)
		for i := from; i < to; i++ {
			c <- sinkDatum{datum{id: fmt.Sprint(i), value: []byte("value")}}
		}
	}()
	return c
}

func idsOf(responses sinker.Responses) (ids []string) {
	for _, r := range responses {
		ids = append(ids, r.ID)
	}
	return ids
}

// TestSinkAnswersAll: every datum is answered, in order; slices come at the limit, each before
// the user's sink sees it.
func TestSinkAnswersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		s := wrapped(t, open(t, throttletest.PerSecond(50)), recorder(&calls, 20*time.Millisecond))
		begin := time.Now()
		for i := range 5 {
			responses := s.Sink(t.Context(), batch(100*i, 100*i+100))
			require.Equal(t, numbers(100*i, 100*i+100), idsOf(responses))
		}
		assert.InDelta(t, 10, time.Since(begin).Seconds(), 0.5)
		n := 0
		for _, c := range calls {
			n += len(c.ids)
			assert.LessOrEqual(t, float64(n), 50*(c.at.Seconds()+0.25)+1, "by %v", c.at)
			assert.LessOrEqual(t, len(c.ids), 8, "at %v", c.at)
		}
		assert.Less(t, len(calls), 350, "slices are worth a call")
	})
}

// TestSinkSlow: the data whose permits come during a slow call make up the next call.
func TestSinkSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		s := wrapped(t, open(t, throttletest.PerSecond(100)), recorder(&calls, 500*time.Millisecond))
		begin := time.Now()
		assert.Len(t, s.Sink(t.Context(), batch(0, 500)), 500)
		assert.InDelta(t, 5, time.Since(begin).Seconds(), 0.8)
		assert.Less(t, len(calls), 15)
	})
}

// TestSinkUnlimited: nothing limited is one call, with the batch as it comes.
func TestSinkUnlimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		s := wrapped(t, open(t, policy.Policy{}), recorder(&calls, 0))
		assert.Equal(t, numbers(0, 100), idsOf(s.Sink(t.Context(), batch(0, 100))))
		assert.Equal(t, []call{{0, numbers(0, 100)}}, calls)
	})
}

// TestSinkRedriven: a datum that the data plane sends again is not charged again, as long as it is
// remembered.
func TestSinkRedriven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		s := wrapped(t, open(t, throttletest.PerSecond(100)), recorder(&calls, 0))
		s.Sink(t.Context(), batch(0, 200))
		begin := time.Now()
		for range 5 {
			assert.Len(t, s.Sink(t.Context(), batch(0, 200)), 200)
		}
		assert.Less(t, time.Since(begin), 300*time.Millisecond)
		s.Sink(t.Context(), batch(200, 300))
		assert.Greater(t, time.Since(begin), 900*time.Millisecond)
	})
}

// TestSinkForgets: of the charged IDs the last 10,000 are remembered. One that comes again counts
// as charged then.
func TestSinkForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		s := wrapped(t, open(t, throttletest.PerSecond(10_000)), recorder(&calls, 0))
		takes := func(from, to int) time.Duration {
			begin := time.Now()
			require.Len(t, s.Sink(t.Context(), batch(from, to)), to-from)
			return time.Since(begin)
		}
		assert.Greater(t, takes(0, 10_000), 900*time.Millisecond)
		assert.Less(t, takes(0, 5000), 50*time.Millisecond, "remembered")
		assert.Greater(t, takes(10_000, 15_000), 400*time.Millisecond)
		assert.Less(t, takes(0, 5000), 50*time.Millisecond, "they came again")
		assert.Less(t, takes(10_000, 15_000), 50*time.Millisecond, "the last ones")
		assert.Greater(t, takes(5000, 10_000), 400*time.Millisecond, "forgotten")
	})
}

// TestSinkBusy: data for which the user's sink is busy are passed to it again, not before their
// time, and are charged again: a busy service is not called more often than the limit allows. In
// the end, all data are answered with a success, and none with a nack.
func TestSinkBusy(t *testing.T) {
	for name, p := range map[string]policy.Policy{"limited": throttletest.PerSecond(50), "unlimited": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, last := 0, map[string]time.Time{}
				tries := map[string]int{}
				s := wrapped(t, open(t, p),
					func(_ context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
						for d := range in {
							asked++
							tries[d.ID()]++
							if at, again := last[d.ID()]; again {
								assert.GreaterOrEqual(t, time.Since(at), time.Second)
							}
							last[d.ID()] = time.Now()
							if tries[d.ID()] < 4 {
								responses = append(responses, numaflowthrottle.Busy(d.ID(), time.Second))
							} else {
								responses = append(responses, sinker.ResponseOK(d.ID()))
							}
						}
						return responses
					})
				begin := time.Now()
				responses := s.Sink(t.Context(), batch(0, 100))
				assert.Equal(t, 400, asked)
				assert.ElementsMatch(t, numbers(0, 100), idsOf(responses))
				for _, r := range responses {
					assert.True(t, r.Success)
				}
				if name == "limited" {
					assert.InDelta(t, 8, time.Since(begin).Seconds(), 0.5)
				} else {
					assert.InDelta(t, 3, time.Since(begin).Seconds(), 0.3)
				}
			})
		})
	}
}

// TestSinkNacks: with WithNacks, busy data go back to the source, and are charged when they come
// again.
func TestSinkNacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		handle := func(_ context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
			for d := range in {
				asked++
				responses = append(responses, numaflowthrottle.Busy(d.ID(), 1500*time.Millisecond))
			}
			return responses
		}
		s, err := numaflowthrottle.Sink(sinker.SinkerFunc(handle), open(t, throttletest.PerSecond(50)),
			numaflowthrottle.WithTopic(topic), quiet, numaflowthrottle.WithNacks())
		require.NoError(t, err)
		begin := time.Now()
		for range 10 {
			for _, r := range s.Sink(t.Context(), batch(0, 50)) {
				require.True(t, r.Nack)
				assert.EqualValues(t, 1500, *r.NackOptions.Delay)
			}
		}
		assert.Equal(t, 500, asked)
		assert.InDelta(t, 10, time.Since(begin).Seconds(), 0.5)
	})
}

// TestSinkOfProcessThatEnds: data that wait for a permit or a busy system are served for four more
// seconds, and then fail. Data of each further call fail after another four seconds, so that a
// retryStrategy of few steps does not drop them at once.
func TestSinkOfProcessThatEnds(t *testing.T) {
	for _, nacks := range []bool{false, true} {
		t.Run(fmt.Sprint("nacks ", nacks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				process, end := context.WithCancel(t.Context())
				opts := []numaflowthrottle.Option{numaflowthrottle.WithTopic(topic), quiet,
					numaflowthrottle.WithProcess(process)}
				if nacks {
					opts = append(opts, numaflowthrottle.WithNacks())
				}
				var calls []call
				s, err := numaflowthrottle.Sink(recorder(&calls, 0), open(t, throttletest.PerSecond(5)), opts...)
				require.NoError(t, err)
				time.AfterFunc(5*time.Second, end)
				begin, total := time.Now(), 0
				handled := func(data <-chan sinker.Datum, n int) (ok int) {
					responses := s.Sink(t.Context(), data)
					assert.Len(t, responses, n)
					for _, r := range responses {
						if r.Success {
							ok++
						} else {
							assert.Equal(t, nacks, r.Nack)
						}
					}
					total += ok
					return ok
				}
				assert.InDelta(t, 45, handled(batch(0, 100), 100), 3)
				assert.InDelta(t, 9, time.Since(begin).Seconds(), 0.3)
				later := time.Now()
				// what may come again at once waits for its permits
				ok := handled(batch(100, 130), 30)
				if nacks {
					assert.Equal(t, 30, ok)
				} else {
					assert.InDelta(t, 20, ok, 3)
					assert.InDelta(t, 4, time.Since(later).Seconds(), 0.3)
				}
				assert.LessOrEqual(t, float64(total), 5*(time.Since(begin).Seconds()+0.25)+1)
			})
		})
	}
}

// TestBusySinkOfProcessThatEnds: a system that stays busy does not delay a stop.
func TestBusySinkOfProcessThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process, end := context.WithCancel(t.Context())
		handle := func(_ context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
			for d := range in {
				responses = append(responses, numaflowthrottle.Busy(d.ID(), time.Minute))
			}
			return responses
		}
		s, err := numaflowthrottle.Sink(sinker.SinkerFunc(handle), open(t, policy.Policy{}),
			numaflowthrottle.WithTopic(topic), quiet, numaflowthrottle.WithProcess(process))
		require.NoError(t, err)
		time.AfterFunc(5*time.Second, end)
		begin := time.Now()
		responses := s.Sink(t.Context(), batch(0, 10))
		assert.Equal(t, 9*time.Second, time.Since(begin).Round(100*time.Millisecond))
		assert.ElementsMatch(t, numbers(0, 10), idsOf(responses))
		for _, r := range responses {
			assert.False(t, r.Success || r.Nack)
			assert.Contains(t, r.Err, "busy")
		}
	})
}

// TestSinkPanic: a panic of the user's code continues. Permits go back, and unanswered data are
// charged when they come again.
func TestSinkPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttletest.PerSecond(100)
		p.MaxInFlight = new(int64(200))
		failing := true
		s := wrapped(t, open(t, p),
			func(_ context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
				if failing {
					time.Sleep(time.Second) // permits come for the next slice
					panic("the user's")
				}
				for d := range in {
					responses = append(responses, sinker.ResponseOK(d.ID()))
				}
				return responses
			})
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			assert.PanicsWithValue(t, "the user's", func() { s.Sink(ctx, batch(0, 300)) })
			cancel() // as the SDK does
			synctest.Wait()
		}
		failing = false
		begin := time.Now()
		assert.Len(t, s.Sink(t.Context(), batch(0, 300)), 300)
		assert.InDelta(t, 3, time.Since(begin).Seconds(), 0.3)
	})
}

// TestSinkEnds: when the stream ends during a wait, all data are answered, and those without a
// permit fail.
func TestSinkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		s := wrapped(t, open(t, throttletest.PerSecond(10)), recorder(&calls, 0))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		responses := s.Sink(ctx, batch(0, 100))
		require.Equal(t, numbers(0, 100), idsOf(responses))
		done := 0
		for _, r := range responses {
			if r.Success {
				done++
			} else {
				assert.False(t, r.Nack)
				assert.Contains(t, r.Err, "wait for a permit")
			}
		}
		assert.InDelta(t, 10, done, 4)
	})
}

// TestSinkOfClosedLimiter: messages are neither lost nor delivered without a permit. They wait
// until the stream ends. A nack comes after a second.
func TestSinkOfClosedLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		lim := open(t, throttletest.PerSecond(10))
		s := wrapped(t, lim, recorder(&calls, 0))
		nacking, err := numaflowthrottle.Sink(recorder(&calls, 0), lim,
			numaflowthrottle.WithTopic(topic), quiet, numaflowthrottle.WithNacks())
		require.NoError(t, err)
		require.NoError(t, lim.Close())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		for _, r := range nacking.Sink(ctx, batch(0, 10)) {
			assert.True(t, r.Nack)
		}
		assert.Equal(t, time.Second, time.Since(begin))
		for _, r := range s.Sink(ctx, batch(0, 10)) {
			assert.False(t, r.Success || r.Nack)
		}
		assert.Equal(t, time.Minute, time.Since(begin))
		assert.Empty(t, calls)
	})
}

// TestBusy: without a wrapper it is a failure.
func TestBusy(t *testing.T) {
	r := numaflowthrottle.Busy("7", 1500*time.Millisecond)
	assert.Equal(t, "7", r.ID)
	assert.False(t, r.Success || r.Nack)
	assert.Equal(t, "busy", r.Err)
}

// TestSinkBetweenBatches: permits for the next batch come while the data plane prepares it: at
// most what the gap is worth, and at most a batch.
func TestSinkBetweenBatches(t *testing.T) {
	for _, c := range []struct {
		gap  time.Duration
		rate float64 // that is reached, of 50/s
	}{{0, 50}, {500 * time.Millisecond, 50}, {1500 * time.Millisecond, 50}, {4 * time.Second, 25}} {
		t.Run(c.gap.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls []call
				s := wrapped(t, open(t, throttletest.PerSecond(50)), recorder(&calls, 20*time.Millisecond))
				begin := time.Now()
				for i := range 22 {
					if i == 2 { // how long a gap is is known
						begin = time.Now()
					}
					s.Sink(t.Context(), batch(100*i, 100*i+100))
					time.Sleep(c.gap)
				}
				assert.InDelta(t, c.rate, 2000/time.Since(begin).Seconds(), c.rate/50)
				for _, d := range []time.Duration{time.Second, 10 * time.Second} {
					for i := range calls {
						n := 0
						for _, other := range calls[i:] {
							if other.at-calls[i].at < d {
								n += len(other.ids)
							}
						}
						assert.LessOrEqual(t, float64(n), 50*(d+c.gap+250*time.Millisecond).Seconds()+1)
					}
				}
			})
		})
	}
}

// TestSinkStrict: where permits are paced, each is used at its time.
func TestSinkStrict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		p := throttletest.PerSecond(100)
		p.Sharing.Mode = policy.Strict
		s := wrapped(t, open(t, p), recorder(&calls, 0))
		s.Sink(t.Context(), batch(0, 50))
		require.Len(t, calls, 50)
		for i, c := range calls[1:] {
			assert.GreaterOrEqual(t, c.at-calls[i].at, 8*time.Millisecond)
		}
	})
}

// TestSinkInFlight: with maxInFlight 1, a sink gets its message without waiting for more.
func TestSinkInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []call
		p := throttletest.PerSecond(1000)
		p.MaxInFlight = new(int64(1))
		s := wrapped(t, open(t, p), recorder(&calls, time.Millisecond))
		begin := time.Now()
		s.Sink(t.Context(), batch(0, 100))
		assert.Less(t, time.Since(begin), time.Second)
	})
}
