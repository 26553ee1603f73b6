package dataplane

import (
	"context"
	"fmt"
	"time"

	sinkpb "github.com/numaproj/numaflow-go/pkg/apis/proto/sink/v1"
	"github.com/stretchr/testify/require"
)

// Sink runs a flow from a built-in source to a user-defined sink, until stop is called.
func (v *Vertex) Sink(b Batch) (stop func()) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	stream, err := sinkpb.NewSinkClient(v.conn).SinkFn(ctx)
	require.NoError(v.t, err)
	require.NoError(v.t, stream.Send(&sinkpb.SinkRequest{Handshake: &sinkpb.Handshake{Sot: true}}))
	r, err := stream.Recv()
	require.NoError(v.t, err)
	require.True(v.t, r.GetHandshake().GetSot())

	f := &flow{Batch: b, source: &builtInSource{Batch: b, vertex: v}, end: cancel}
	f.sink = func(chunk []*message) {
		if err := v.sunk(f, stream, chunk); err != nil {
			v.failed(ctx, "Sink", err)
			f.stop()
			for _, m := range chunk { // the chunk fails as a whole
				m.nack(0)
			}
		}
	}
	return f.run()
}

// sunk sends a chunk to the sink, with retries. When the flow stops, it retries no more, and the
// chunk fails as a whole.
func (v *Vertex) sunk(f *flow, stream sinkpb.Sink_SinkFnClient, chunk []*message) error {
	todo := chunk
	for step := 1; ; step++ {
		failed, err := v.sink(stream, todo)
		if err != nil || len(failed) == 0 {
			return err
		}
		if f.stopped() {
			for _, m := range chunk {
				m.nack(0)
			}
			return nil
		}
		if f.Retry.Steps > 0 && step > f.Retry.Steps {
			if f.Retry.Drop {
				v.count(&v.lost, len(failed))
				return nil
			}
			return fmt.Errorf("%d data failed after %d retries", len(failed), f.Retry.Steps)
		}
		time.Sleep(max(f.Retry.Interval, time.Millisecond))
		todo = failed
	}
}

// sink makes one call and returns the failed messages. Each datum must be answered once.
func (v *Vertex) sink(
	stream sinkpb.Sink_SinkFnClient, chunk []*message,
) (failed []*message, err error) {
	open := map[string]*message{}
	for _, m := range chunk {
		open[m.id] = m
		request := &sinkpb.SinkRequest_Request{Id: m.id, Keys: m.keys, Value: m.value}
		if err := stream.Send(&sinkpb.SinkRequest{Request: request}); err != nil {
			return nil, err
		}
	}
	end := &sinkpb.SinkRequest{Status: &sinkpb.TransmissionStatus{Eot: true}}
	if err := stream.Send(end); err != nil {
		return nil, err
	}
	again := map[string]bool{}
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		for _, result := range r.GetResults() {
			m := open[result.GetId()]
			if m == nil {
				v.fault("datum %s was answered twice, or never sent", result.GetId())
				continue
			}
			delete(open, m.id)
			switch result.GetStatus() {
			case sinkpb.Status_SUCCESS:
				v.arrived(1)
			case sinkpb.Status_NACK:
				m.nack(time.Duration(result.GetNackOptions().GetDelay()) * time.Millisecond)
				v.count(&v.refused, 1)
			case sinkpb.Status_FAILURE:
				again[m.id] = true
				v.count(&v.failures, 1)
			default:
				v.fault("datum %s was answered with %v %s", m.id, result.GetStatus(),
					result.GetErrMsg())
			}
		}
		if r.GetStatus().GetEot() {
			if len(open) > 0 {
				v.fault("%d of %d data were not answered", len(open), len(chunk))
			}
			for _, m := range chunk {
				if again[m.id] {
					failed = append(failed, m)
				}
			}
			return failed, nil
		}
	}
}
