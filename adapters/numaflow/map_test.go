package numaflowthrottle_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numaproj/numaflow-go/pkg/batchmapper"
	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/numaproj/numaflow-go/pkg/mapstreamer"
	"github.com/numaproj/numaflow-go/pkg/sourcetransformer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// mapDatum is a datum of a map.
type mapDatum struct{ datum }

func (mapDatum) UserMetadata() *mapper.UserMetadata     { return nil }
func (mapDatum) SystemMetadata() *mapper.SystemMetadata { return nil }

// kinds are all wrappers that take a datum at a time; each runs n data as the data plane does,
// with a goroutine for each or as a batch, and tells how many came through and were not dropped.
// Where drops says so, every other one is dropped.
var kinds = map[string]func(
	t *testing.T, lim *dispatch.Limiter, n int, drops bool, opts ...numaflowthrottle.Option,
) int64{
	"Map": func(t *testing.T, lim *dispatch.Limiter, n int, drops bool, opts ...numaflowthrottle.Option) int64 {
		var useful atomic.Int64
		handle := func(_ context.Context, _ []string, d mapper.Datum) mapper.Messages {
			if drops && odd(d.Value()) {
				return mapper.Messages{mapper.MessageToDrop()}
			}
			useful.Add(1)
			return mapper.Messages{mapper.NewMessage(d.Value()), mapper.MessageToDrop()}
		}
		m, err := numaflowthrottle.Map(mapper.MapperFunc(handle), lim, opts...)
		require.NoError(t, err)
		each(n, func(value []byte) {
			assert.NotEmpty(t, m.Map(t.Context(), nil, mapDatum{numbered(value)}))
		})
		return useful.Load()
	},
	"Transform": func(t *testing.T, lim *dispatch.Limiter, n int, drops bool, opts ...numaflowthrottle.Option) int64 {
		var useful atomic.Int64
		handle := func(_ context.Context, _ []string, d sourcetransformer.Datum) sourcetransformer.Messages {
			if drops && odd(d.Value()) {
				return sourcetransformer.Messages{sourcetransformer.MessageToDrop(d.EventTime())}
			}
			useful.Add(1)
			return sourcetransformer.Messages{sourcetransformer.NewMessage(d.Value(), d.EventTime())}
		}
		m, err := numaflowthrottle.Transform(sourcetransformer.SourceTransformFunc(handle), lim, opts...)
		require.NoError(t, err)
		each(n, func(value []byte) {
			assert.NotEmpty(t, m.Transform(t.Context(), nil, mapDatum{numbered(value)}))
		})
		return useful.Load()
	},
	"MapStream": func(t *testing.T, lim *dispatch.Limiter, n int, drops bool, opts ...numaflowthrottle.Option) int64 {
		var useful atomic.Int64
		handle := func(_ context.Context, _ []string, d mapstreamer.Datum, out chan<- mapstreamer.Message) {
			defer close(out)
			if drops && odd(d.Value()) {
				out <- mapstreamer.MessageToDrop()
				return
			}
			useful.Add(1)
			out <- mapstreamer.NewMessage(d.Value())
			out <- mapstreamer.NewMessage(d.Value())
		}
		m, err := numaflowthrottle.MapStream(mapstreamer.MapStreamerFunc(handle), lim, opts...)
		require.NoError(t, err)
		each(n, func(value []byte) {
			out, results := make(chan mapstreamer.Message), make(chan int)
			go func() {
				count := 0
				for range out {
					count++
				}
				results <- count
			}()
			m.MapStream(t.Context(), nil, numbered(value), out)
			assert.NotZero(t, <-results)
		})
		return useful.Load()
	},
	"BatchMap": func(t *testing.T, lim *dispatch.Limiter, n int, drops bool, opts ...numaflowthrottle.Option) int64 {
		var useful atomic.Int64
		handle := func(_ context.Context, in <-chan batchmapper.Datum) (responses batchmapper.BatchResponses) {
			for d := range in {
				r := batchmapper.NewBatchResponse(d.Id())
				if drops && odd(d.Value()) {
					r = r.Append(batchmapper.MessageToDrop())
				} else {
					useful.Add(1)
					r = r.Append(batchmapper.NewMessage(d.Value()))
				}
				responses = append(responses, r)
			}
			return responses
		}
		m, err := numaflowthrottle.BatchMap(batchmapper.BatchMapperFunc(handle), lim, opts...)
		require.NoError(t, err)
		in := make(chan batchmapper.Datum)
		go func() {
			defer close(in)
			for i := range n {
				d := numbered(fmt.Append(nil, i))
				d.id = fmt.Sprint(i)
				in <- d
			}
		}()
		responses := m.BatchMap(t.Context(), in)
		for i, r := range responses.Items() {
			assert.Equal(t, fmt.Sprint(i), r.Id())
		}
		assert.Len(t, responses, n)
		return useful.Load()
	},
}

func odd(value []byte) bool { return value[len(value)-1]%2 == 1 }

// each runs f for n data at once, as Numaflow does.
func each(n int, f func(value []byte)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(fmt.Append(nil, i)) })
	}
	all.Wait()
}

// TestMaps: data come at the limit, in all kinds of maps.
func TestMaps(t *testing.T) {
	for name, run := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				assert.EqualValues(t, 500,
					run(t, open(t, throttletest.PerSecond(100)), 500, false, numaflowthrottle.WithTopic(topic)))
				assert.InDelta(t, 5, time.Since(begin).Seconds(), 0.3)
			})
		})
	}
}

// TestDrops: of data half of which are dropped, as many are useful as the limit allows;
// WithChargedDrops, half as many.
func TestDrops(t *testing.T) {
	for name, run := range kinds {
		for _, charged := range []bool{false, true} {
			t.Run(fmt.Sprint(name, charged), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					opts, seconds := []numaflowthrottle.Option{numaflowthrottle.WithTopic(topic)}, 5.0
					if charged {
						opts, seconds = append(opts, numaflowthrottle.WithChargedDrops()), 10
					}
					begin := time.Now()
					assert.EqualValues(t, 500, run(t, open(t, throttletest.PerSecond(100)), 1000, true, opts...))
					assert.InDelta(t, seconds, time.Since(begin).Seconds(), seconds*0.06)
				})
			})
		}
	}
}

// TestMapUnlimited: nothing limited does not wait.
func TestMapUnlimited(t *testing.T) {
	for name, run := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				assert.EqualValues(t, 250, run(t, nil, 500, true))
				lim, err := dispatch.Open(t.Context(), dispatch.Config{})
				require.NoError(t, err)
				assert.EqualValues(t, 500, run(t, lim, 500, false, numaflowthrottle.WithTopic(topic)))
				assert.Zero(t, time.Since(begin))
				require.NoError(t, lim.Close())
			})
		})
	}
}

// TestMapPanic: a panic of the user's code continues, and its permit goes back.
func TestMapPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttletest.PerSecond(1000)
		p.MaxInFlight = new(int64(1))
		lim := open(t, p)
		m, err := numaflowthrottle.Map(mapper.MapperFunc(func(context.Context, []string, mapper.Datum) mapper.Messages {
			panic("the user's")
		}), lim, numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		streamHandler := func(context.Context, []string, mapstreamer.Datum, chan<- mapstreamer.Message) {
			panic("the user's")
		}
		stream, err := numaflowthrottle.MapStream(mapstreamer.MapStreamerFunc(streamHandler), lim,
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		chargedHandler := func(context.Context, []string, mapstreamer.Datum, chan<- mapstreamer.Message) {
			panic("the user's")
		}
		charged, err := numaflowthrottle.MapStream(mapstreamer.MapStreamerFunc(chargedHandler), lim,
			numaflowthrottle.WithTopic(topic), quiet, numaflowthrottle.WithChargedDrops())
		require.NoError(t, err)
		batchHandler := func(context.Context, <-chan batchmapper.Datum) batchmapper.BatchResponses {
			panic("the user's")
		}
		batch, err := numaflowthrottle.BatchMap(batchmapper.BatchMapperFunc(batchHandler), lim,
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		for range 3 {
			assert.PanicsWithValue(t, "the user's", func() { m.Map(t.Context(), nil, mapDatum{}) })
			for _, stream := range []mapstreamer.MapStreamer{stream, charged} {
				assert.PanicsWithValue(t, "the user's",
					func() {
						stream.MapStream(t.Context(), nil, datum{}, make(chan mapstreamer.Message))
					})
			}
			assert.PanicsWithValue(t, "the user's", func() {
				in := make(chan batchmapper.Datum, 1)
				in <- datum{}
				close(in)
				batch.BatchMap(t.Context(), in)
			})
		}
	})
}

// TestMapEnds: what still waits when the stream ends is refused, so that it comes again.
func TestMapEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := func(_ context.Context, _ []string, d mapper.Datum) mapper.Messages {
			return mapper.Messages{mapper.NewMessage(d.Value())}
		}
		m, err := numaflowthrottle.Map(mapper.MapperFunc(handle), open(t, throttletest.PerSecond(10)),
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var refused atomic.Int64
		each(100, func(value []byte) {
			results := m.Map(ctx, nil, mapDatum{numbered(value)})
			require.Len(t, results, 1)
			if len(results[0].Tags()) > 0 {
				assert.Equal(t, mapper.NACK, results[0].Tags()[0])
				refused.Add(1)
			}
		})
		assert.InDelta(t, 90, refused.Load(), 4)
	})
}

// TestMapStreamLeavesItOpen: a user's code that ends with the stream need not close its channel.
func TestMapStreamLeavesItOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttletest.PerSecond(1000)
		p.MaxInFlight = new(int64(1))
		handle := func(ctx context.Context, _ []string, _ mapstreamer.Datum, _ chan<- mapstreamer.Message) {
			<-ctx.Done()
		}
		m, err := numaflowthrottle.MapStream(mapstreamer.MapStreamerFunc(handle), open(t, p),
			numaflowthrottle.WithTopic(topic), quiet)
		require.NoError(t, err)
		for range 3 { // each has its permit
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			begin := time.Now()
			m.MapStream(ctx, nil, datum{}, make(chan mapstreamer.Message))
			assert.Equal(t, time.Second, time.Since(begin).Round(100*time.Millisecond))
			cancel()
		}
	})
}
