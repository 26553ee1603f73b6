package numaflowthrottle_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numaproj/numaflow-go/pkg/accumulator"
	"github.com/numaproj/numaflow-go/pkg/reducer"
	"github.com/numaproj/numaflow-go/pkg/reducestreamer"
	"github.com/numaproj/numaflow-go/pkg/sessionreducer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// session is a user's session reducer.
type session struct{ sessionreducer.SessionReducer }

func (session) SessionReduce(
	_ context.Context, _ []string, in <-chan sessionreducer.Datum, out chan<- sessionreducer.Message,
) {
	n := 0
	for range in {
		n++
	}
	out <- sessionreducer.NewMessage(fmt.Append(nil, n))
}

func (session) Accumulator(context.Context) []byte { return []byte("the user's") }

type sessions struct{}

func (sessions) Create() sessionreducer.SessionReducer { return session{} }

// feed sends n data, and closes the channel.
func feed[D any](n int, d D) <-chan D {
	c := make(chan D)
	go func() {
		defer close(c)
		for range n {
			c <- d
		}
	}()
	return c
}

// reducers run n data through one reducer of each kind, and return how many it saw.
var reducers = map[string]func(ctx context.Context, t *testing.T, lim *dispatch.Limiter, n int) string{
	"Reduce": func(ctx context.Context, t *testing.T, lim *dispatch.Limiter, n int) string {
		reduce := func(_ context.Context, _ []string, in <-chan reducer.Datum, _ reducer.Metadata) reducer.Messages {
			n := 0
			for range in {
				n++
			}
			return reducer.Messages{reducer.NewMessage(fmt.Append(nil, n))}
		}
		c, err := numaflowthrottle.Reduce(reducer.SimpleCreatorWithReduceFn(reduce), lim,
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		return string(c.Create().Reduce(ctx, nil, feed[reducer.Datum](n, datum{}), nil)[0].Value())
	},
	"ReduceStream": func(ctx context.Context, t *testing.T, lim *dispatch.Limiter, n int) string {
		reduce := func(
			_ context.Context, _ []string, in <-chan reducestreamer.Datum,
			out chan<- reducestreamer.Message, _ reducestreamer.Metadata,
		) {
			n := 0
			for range in {
				n++
			}
			out <- reducestreamer.NewMessage(fmt.Append(nil, n))
		}
		c, err := numaflowthrottle.ReduceStream(reducestreamer.SimpleCreatorWithReduceStreamFn(reduce), lim,
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		out := make(chan reducestreamer.Message, 1)
		c.Create().ReduceStream(ctx, nil, feed[reducestreamer.Datum](n, datum{}), out, nil)
		m := <-out
		return string(m.Value())
	},
	"SessionReduce": func(ctx context.Context, t *testing.T, lim *dispatch.Limiter, n int) string {
		c, err := numaflowthrottle.SessionReduce(sessions{}, lim, numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		out := make(chan sessionreducer.Message, 1)
		r := c.Create()
		r.SessionReduce(ctx, nil, feed[sessionreducer.Datum](n, datum{}), out)
		assert.Equal(t, "the user's", string(r.Accumulator(ctx)))
		m := <-out
		return string(m.Value())
	},
	"Accumulate": func(ctx context.Context, t *testing.T, lim *dispatch.Limiter, n int) string {
		reduce := func(_ context.Context, in <-chan accumulator.Datum, out chan<- accumulator.Message) {
			n := 0
			var last accumulator.Datum
			for last = range in {
				n++
			}
			out <- accumulator.MessageFromDatum(last).WithValue(fmt.Append(nil, n))
		}
		c, err := numaflowthrottle.Accumulate(accumulator.SimpleCreatorWithAccumulateFn(reduce), lim,
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		out := make(chan accumulator.Message, 1)
		c.Create().Accumulate(ctx, feed[accumulator.Datum](n, datum{}), out)
		m := <-out
		return string(m.Value())
	},
}

// TestReducers: data come at the limit, before the user's reducer sees them.
func TestReducers(t *testing.T) {
	for name, run := range reducers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				assert.Equal(t, "300", run(t.Context(), t, open(t, throttletest.PerSecond(100)), 300))
				assert.InDelta(t, 3, time.Since(begin).Seconds(), 0.3)
				begin = time.Now()
				assert.Equal(t, "300", run(t.Context(), t, nil, 300))
				assert.Zero(t, time.Since(begin))
			})
		})
	}
}

// TestReducersEnd: when the stream ends, no datum waits any more, and nothing is kept from the
// reducer.
func TestReducersEnd(t *testing.T) {
	for name, run := range reducers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begin := time.Now()
				assert.Equal(t, "300", run(ctx, t, open(t, throttletest.PerSecond(100)), 300))
				assert.Equal(t, time.Second, time.Since(begin))
			})
		})
	}
}

// TestReducerOfTheDead: a reducer that ends with its stream leaves nothing behind, although its
// input is not closed.
func TestReducerOfTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reduce := func(ctx context.Context, _ []string, _ <-chan reducer.Datum, _ reducer.Metadata) reducer.Messages {
			<-ctx.Done()
			return nil
		}
		c, err := numaflowthrottle.Reduce(reducer.SimpleCreatorWithReduceFn(reduce), open(t, throttletest.PerSecond(1000)),
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		ctx, die := context.WithTimeout(t.Context(), time.Second)
		defer die()
		c.Create().Reduce(ctx, nil, make(chan reducer.Datum), nil)
	})
}

// TestReducerReturns: a reducer that returns before its input has ended leaves nothing behind,
// and the permits of data that it did not see are given back.
func TestReducerReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttletest.PerSecond(1000)
		p.MaxInFlight = new(int64(1))
		reduce := func(_ context.Context, _ []string, in <-chan reducer.Datum, _ reducer.Metadata) reducer.Messages {
			<-in
			return nil
		}
		c, err := numaflowthrottle.Reduce(reducer.SimpleCreatorWithReduceFn(reduce), open(t, p),
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		for range 5 {
			in := make(chan reducer.Datum, 3)
			for range cap(in) {
				in <- datum{}
			}
			close(in)
			c.Create().Reduce(ctx, nil, in, nil)
			synctest.Wait()
		}
		assert.Less(t, time.Since(begin), time.Second)
	})
}
