package numaflowthrottle

import (
	"context"
	"slices"

	"github.com/numaproj/numaflow-go/pkg/batchmapper"
	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/numaproj/numaflow-go/pkg/mapstreamer"
	"github.com/numaproj/numaflow-go/pkg/sourcetransformer"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Map puts lim in front of m: each datum waits for its permit, first come first served. The permit of one whose results are all
// dropped goes back, unless [WithChargedDrops]. What has no permit when the stream ends is nacked. A nil lim limits nothing.
//
// The error is the fault of the topic's or subscription's name, or dispatch.ErrClosed.
func Map(m mapper.Mapper, lim *dispatch.Limiter, opts ...Option) (mapper.Mapper, error) {
	if lim == nil {
		return m, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return mapper.MapperFunc(func(ctx context.Context, keys []string, d mapper.Datum) mapper.Messages {
		return mapped(ctx, v, size(d.Value(), keys, d.Headers()), d.Headers(),
			func() mapper.Messages { return m.Map(ctx, keys, d) },
			func(err error) mapper.Messages { return mapper.Messages{mapper.MessageToNack(nack(err))} })
	}), nil
}

// Transform is [Map] for a source transformer.
func Transform(t sourcetransformer.SourceTransformer, lim *dispatch.Limiter, opts ...Option) (sourcetransformer.SourceTransformer, error) {
	if lim == nil {
		return t, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return sourcetransformer.SourceTransformFunc(func(ctx context.Context, keys []string, d sourcetransformer.Datum) sourcetransformer.Messages {
		return mapped(ctx, v, size(d.Value(), keys, d.Headers()), d.Headers(),
			func() sourcetransformer.Messages { return t.Transform(ctx, keys, d) },
			func(err error) sourcetransformer.Messages {
				return sourcetransformer.Messages{sourcetransformer.MessageToNack(d.EventTime(), nack(err))}
			})
	}), nil
}

// A result of the user's code is dropped by a tag, the same one in all packages of the SDK.
type result interface{ Tags() []string }

func dropped[R result](results []R) bool {
	return !slices.ContainsFunc(results, func(r R) bool { return !slices.Contains(r.Tags(), mapper.DROP) })
}

// mapped is one datum's way.
func mapped[M ~[]R, R result](ctx context.Context, v *vertex, bytes int64, headers map[string]string, run func() M, refuse func(error) M) (results M) {
	grant, err := v.admit(ctx, bytes, headers)
	if err != nil {
		v.refuse(ctx, err)
		return refuse(err)
	}
	used := 0
	defer func() { grant.Done(used, int64(used)*bytes) }() // run may panic
	results = run()
	if v.chargeDrops || !dropped(results) {
		used = 1
	}
	return results
}

// MapStream is [Map] for a map that streams its results.
func MapStream(m mapstreamer.MapStreamer, lim *dispatch.Limiter, opts ...Option) (mapstreamer.MapStreamer, error) {
	if lim == nil {
		return m, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return &mapStreamer{m, v}, nil
}

type mapStreamer struct {
	inner mapstreamer.MapStreamer
	*vertex
}

// MapStream is the user's, with a permit.
func (s *mapStreamer) MapStream(ctx context.Context, keys []string, d mapstreamer.Datum, out chan<- mapstreamer.Message) {
	bytes := size(d.Value(), keys, d.Headers())
	grant, err := s.admit(ctx, bytes, d.Headers())
	if err != nil {
		s.refuse(ctx, err)
		select {
		case out <- mapstreamer.MessageToNack(nack(err)):
		case <-ctx.Done():
		}
		close(out)
		return
	}
	if !grant.Limited() || s.chargeDrops {
		used := 0
		defer func() { grant.Done(used, int64(used)*bytes) }() // the user's code may panic
		s.inner.MapStream(ctx, keys, d, out)
		used = 1
		return
	}
	in, used, returned := make(chan mapstreamer.Message), make(chan int, 1), make(chan struct{})
	go func() {
		n := 0
		defer func() { used <- n }()
		over := (<-chan struct{})(nil) // the end of the stream counts when the user's code has returned: until then it may send
		for {
			select {
			case m, open := <-in:
				if !open { // all is there: the user's code says so, also to the SDK
					close(out)
					return
				}
				if !dropped([]mapstreamer.Message{m}) {
					n = 1
				}
				select {
				case out <- m:
				case <-ctx.Done():
				}
			case <-returned:
				returned, over = nil, ctx.Done() // it may have others send, and close
			case <-over:
				return
			}
		}
	}()
	panics := true
	defer func() {
		if panics {
			grant.Done(0, 0)
			return // the SDK ends the stream, and with it the goroutine
		}
		n := <-used
		grant.Done(n, int64(n)*bytes)
	}()
	defer close(returned)
	s.inner.MapStream(ctx, keys, d, in)
	panics = false
}

// BatchMap is [Map] for a map of batches. A batch is handed to m in slices, in its order, when their permits are there: each is
// what permits came for while the one before was handled, or in 50 ms.
func BatchMap(m batchmapper.BatchMapper, lim *dispatch.Limiter, opts ...Option) (batchmapper.BatchMapper, error) {
	if lim == nil {
		return m, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return &batchMapper{m, v}, nil
}

type batchMapper struct {
	inner batchmapper.BatchMapper
	*vertex
}

// BatchMap is the user's, with permits.
func (b *batchMapper) BatchMap(ctx context.Context, in <-chan batchmapper.Datum) (responses batchmapper.BatchResponses) {
	if b.free() {
		return b.inner.BatchMap(ctx, in)
	}
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if b.nacks {
		waiting, cancel = b.patience(ctx)
	}
	defer cancel()
	admission := b.admission()
	refused, err := sliced(in, b.sub.Paced(),
		func(d batchmapper.Datum) (dispatch.Grant, error) {
			return admission.next(waiting, batchSize(d), d.Headers())
		}, admission.end,
		func(slice []permitted[batchmapper.Datum]) {
			var results batchmapper.BatchResponses
			defer func() { // the user's code may panic: there are no results then
				used := map[string]bool{}
				for _, r := range results {
					used[r.Id()] = b.chargeDrops || !dropped(r.Items())
				}
				for i := range slice {
					if d := slice[i].datum; used[d.Id()] {
						slice[i].grant.Done(1, batchSize(d))
					} else {
						slice[i].grant.Done(0, 0)
					}
				}
			}()
			results = b.inner.BatchMap(ctx, channel(slice))
			responses = append(responses, results...)
		})
	if err != nil {
		b.refuse(ctx, err)
	}
	for _, d := range refused {
		responses = append(responses, batchmapper.NewBatchResponse(d.Id()).Append(batchmapper.MessageToNack(nack(err))))
	}
	return responses
}

func batchSize(d batchmapper.Datum) int64 { return size(d.Value(), d.Keys(), d.Headers()) }
