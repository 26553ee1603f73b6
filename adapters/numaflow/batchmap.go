package numaflowthrottle

import (
	"context"

	"github.com/numaproj/numaflow-go/pkg/batchmapper"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// BatchMap is [Map] for a map of batches. A batch is passed to m in slices, in its order, as
// permits come: a slice has the data whose permits came while the slice before was handled, or
// within 50 ms.
func BatchMap(
	m batchmapper.BatchMapper, lim *dispatch.Limiter, opts ...Option,
) (batchmapper.BatchMapper, error) {
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
func (b *batchMapper) BatchMap(
	ctx context.Context, in <-chan batchmapper.Datum,
) (responses batchmapper.BatchResponses) {
	if b.unlimited() {
		return b.inner.BatchMap(ctx, in)
	}
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if b.nacks {
		waiting, cancel = b.patience(ctx)
	}
	defer cancel()
	admission := b.admission()
	admit := func(d batchmapper.Datum) (dispatch.Grant, error) {
		return admission.next(waiting, batchSize(d), d.Headers())
	}
	refused, err := inSlices(in, b.sub.Paced(), admit, admission.end,
		func(slice []permitted[batchmapper.Datum]) {
			responses = append(responses, b.handleSlice(ctx, slice)...)
		})
	if err != nil {
		b.refuse(ctx, err)
	}
	for _, d := range refused {
		r := batchmapper.NewBatchResponse(d.Id())
		responses = append(responses, r.Append(batchmapper.MessageToNack(nack(err))))
	}
	return responses
}

// handleSlice passes data that have permits to the user's code.
func (b *batchMapper) handleSlice(
	ctx context.Context, slice []permitted[batchmapper.Datum],
) (results batchmapper.BatchResponses) {
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
	return b.inner.BatchMap(ctx, channelOf(slice))
}

func batchSize(d batchmapper.Datum) int64 { return size(d.Value(), d.Keys(), d.Headers()) }
