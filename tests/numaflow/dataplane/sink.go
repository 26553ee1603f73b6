package dataplane

import (
	"context"
	"fmt"

	sinkpb "github.com/numaproj/numaflow-go/pkg/apis/proto/sink/v1"
	"github.com/stretchr/testify/require"
)

// Sink sends batches, one after the other, until stop, which waits for the batch under way.
func (v *Vertex) Sink(b Batch) (stop func()) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	stream, err := sinkpb.NewSinkClient(v.conn).SinkFn(ctx)
	require.NoError(v.t, err)
	require.NoError(v.t, stream.Send(&sinkpb.SinkRequest{Handshake: &sinkpb.Handshake{Sot: true}}))
	r, err := stream.Recv()
	require.NoError(v.t, err)
	require.True(v.t, r.GetHandshake().GetSot())

	stopping, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		for first := 0; ; first += b.Size {
			select {
			case <-stopping:
				return
			default:
			}
			if err := v.sink(stream, first, b.Size); err != nil {
				v.failed(ctx, "Sink", err)
				return
			}
		}
	}()
	return func() {
		close(stopping)
		<-done
	}
}

// sink is one batch: each datum must be answered once.
func (v *Vertex) sink(stream sinkpb.Sink_SinkFnClient, first, n int) error {
	open := map[string]bool{}
	for i := range n {
		id := fmt.Sprint(first + i)
		open[id] = true
		if err := stream.Send(&sinkpb.SinkRequest{Request: &sinkpb.SinkRequest_Request{Id: id, Value: []byte("value")}}); err != nil {
			return err
		}
	}
	if err := stream.Send(&sinkpb.SinkRequest{Status: &sinkpb.TransmissionStatus{Eot: true}}); err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, result := range r.GetResults() {
			if !open[result.GetId()] {
				v.fault("datum %s was answered twice, or never sent", result.GetId())
			}
			delete(open, result.GetId())
			if result.GetStatus() == sinkpb.Status_SUCCESS {
				v.arrived(1)
			} else {
				v.fault("datum %s was answered with %v %s", result.GetId(), result.GetStatus(), result.GetErrMsg())
			}
		}
		if r.GetStatus().GetEot() {
			if len(open) > 0 {
				v.fault("%d of %d data were not answered", len(open), n)
			}
			return nil
		}
	}
}
