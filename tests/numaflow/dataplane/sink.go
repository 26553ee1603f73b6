package dataplane

import (
	"context"
	"fmt"
	"time"

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

	next, refused := 0, []again(nil)
	return loop(cancel, func() bool {
		var ids []string
		for len(refused) > 0 && len(ids) < b.Size && !refused[0].from.After(time.Now()) {
			ids, refused = append(ids, refused[0].id), refused[1:]
		}
		for ; len(ids) < b.Size; next++ {
			ids = append(ids, fmt.Sprint(next))
		}
		more, err := v.sink(stream, ids)
		if err != nil {
			v.failed(ctx, "Sink", err)
		}
		refused = append(refused, more...)
		return err == nil
	})
}

// An again is a datum that a sink has refused: it is sent again, not before a time.
type again struct {
	id   string
	from time.Time
}

// sink is one batch: each datum must be answered once, and may be refused, not failed.
func (v *Vertex) sink(stream sinkpb.Sink_SinkFnClient, ids []string) (refused []again, err error) {
	open := map[string]bool{}
	for _, id := range ids {
		open[id] = true
		if err := stream.Send(&sinkpb.SinkRequest{Request: &sinkpb.SinkRequest_Request{Id: id, Value: []byte(id)}}); err != nil {
			return nil, err
		}
	}
	if err := stream.Send(&sinkpb.SinkRequest{Status: &sinkpb.TransmissionStatus{Eot: true}}); err != nil {
		return nil, err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		for _, result := range r.GetResults() {
			id := result.GetId()
			if !open[id] {
				v.fault("datum %s was answered twice, or never sent", id)
			}
			delete(open, id)
			switch result.GetStatus() {
			case sinkpb.Status_SUCCESS:
				v.arrived(1)
			case sinkpb.Status_NACK:
				delay := time.Duration(result.GetNackOptions().GetDelay()) * time.Millisecond
				refused = append(refused, again{id, time.Now().Add(delay)})
			default:
				v.fault("datum %s was answered with %v %s", id, result.GetStatus(), result.GetErrMsg())
			}
		}
		if r.GetStatus().GetEot() {
			if len(open) > 0 {
				v.fault("%d of %d data were not answered", len(open), len(ids))
			}
			v.mu.Lock()
			v.refused += len(refused)
			v.mu.Unlock()
			return refused, nil
		}
	}
}
