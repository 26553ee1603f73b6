package numaflowthrottle

import (
	"context"
	"slices"

	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/numaproj/numaflow-go/pkg/sourcetransformer"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// Map applies the limits of lim to m. Each datum waits for its permit, first come first served. The
// permit of a datum whose results are all dropped goes back, unless [WithChargedDrops]. A datum
// without a permit when the stream ends is nacked. A nil lim limits nothing.
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
	wrapped := func(ctx context.Context, keys []string, d mapper.Datum) mapper.Messages {
		return mapped(ctx, v, size(d.Value(), keys, d.Headers()), d.Headers(),
			func() mapper.Messages { return m.Map(ctx, keys, d) },
			func(err error) mapper.Messages {
				return mapper.Messages{mapper.MessageToNack(nack(err))}
			})
	}
	return mapper.MapperFunc(wrapped), nil
}

// Transform is [Map] for a source transformer.
func Transform(
	t sourcetransformer.SourceTransformer, lim *dispatch.Limiter, opts ...Option,
) (sourcetransformer.SourceTransformer, error) {
	if lim == nil {
		return t, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	wrapped := func(
		ctx context.Context, keys []string, d sourcetransformer.Datum,
	) sourcetransformer.Messages {
		return mapped(ctx, v, size(d.Value(), keys, d.Headers()), d.Headers(),
			func() sourcetransformer.Messages { return t.Transform(ctx, keys, d) },
			func(err error) sourcetransformer.Messages {
				refused := sourcetransformer.MessageToNack(d.EventTime(), nack(err))
				return sourcetransformer.Messages{refused}
			})
	}
	return sourcetransformer.SourceTransformFunc(wrapped), nil
}

// mapped runs the user's code for a datum, with a permit. Without one it returns what refuse
// returns.
func mapped[M ~[]R, R result](
	ctx context.Context, v *vertex, bytes int64, headers map[string]string,
	run func() M, refuse func(error) M,
) (results M) {
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

// WithChargedDrops keeps the permit of a message all of whose results are dropped. The default is
// that it goes back, for another message. It is for maps and source transformers.
func WithChargedDrops() Option { return func(o *options) { o.chargeDrops = true } }

// A result of the user's code is dropped by a tag, which is the same in all packages of the SDK.
type result interface{ Tags() []string }

// dropped reports whether all results are dropped, or there are none.
func dropped[R result](results []R) bool {
	return !slices.ContainsFunc(results, func(r R) bool {
		return !slices.Contains(r.Tags(), mapper.DROP)
	})
}
