package dataplane

import (
	"context"
	"fmt"
	"slices"

	mappb "github.com/numaproj/numaflow-go/pkg/apis/proto/map/v1"
	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/stretchr/testify/require"
)

// Map sends batches of data to a map of any kind, one after the other, until stop, which waits for the batch under way. keys are
// those of the i-th.
func (v *Vertex) Map(b Batch, keys func(i int) []string) (stop func()) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	stream, err := mappb.NewMapClient(v.conn).MapFn(ctx)
	require.NoError(v.t, err)
	require.NoError(v.t, stream.Send(&mappb.MapRequest{Handshake: &mappb.Handshake{Sot: true}}))
	r, err := stream.Recv()
	require.NoError(v.t, err)
	require.True(v.t, r.GetHandshake().GetSot())

	first := 0
	return loop(cancel, func() bool {
		err := v.mapped(stream, first, b.Size, keys)
		if err != nil {
			v.failed(ctx, "Map", err)
		}
		first += b.Size
		return err == nil
	})
}

// mapped is one batch: each datum must be answered once. What is dropped does not arrive.
func (v *Vertex) mapped(stream mappb.Map_MapFnClient, first, n int, keys func(i int) []string) error {
	open := map[string]bool{}
	for i := first; i < first+n; i++ {
		id := fmt.Sprint(i)
		open[id] = true
		if err := stream.Send(&mappb.MapRequest{Id: id, Request: &mappb.MapRequest_Request{Keys: keys(i), Value: []byte("value")}}); err != nil {
			return err
		}
	}
	if v.kind == BatchMap {
		if err := stream.Send(&mappb.MapRequest{Status: &mappb.TransmissionStatus{Eot: true}}); err != nil {
			return err
		}
	}
	for len(open) > 0 || v.kind == BatchMap {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		eot := r.GetStatus().GetEot() // of the batch, or of a stream's datum
		if eot && v.kind == BatchMap {
			if len(open) > 0 {
				v.fault("%d of %d data were not answered", len(open), n)
			}
			return nil
		}
		if !open[r.GetId()] {
			v.fault("datum %s was answered twice, or never sent", r.GetId())
		}
		if eot || v.kind != MapStream {
			delete(open, r.GetId())
		}
		for _, result := range r.GetResults() {
			if slices.Contains(result.GetTags(), mapper.NACK) {
				v.mu.Lock()
				v.refused++
				v.mu.Unlock()
			} else if !slices.Contains(result.GetTags(), mapper.DROP) {
				v.arrived(1)
			}
		}
	}
	return nil
}
