package dataplane

import (
	"context"
	"time"

	sourcepb "github.com/numaproj/numaflow-go/pkg/apis/proto/source/v1"
	"github.com/stretchr/testify/require"
)

// reads opens a stream of Reads.
func (v *Vertex) reads(ctx context.Context) sourcepb.Source_ReadFnClient {
	v.t.Helper()
	reads, err := sourcepb.NewSourceClient(v.conn).ReadFn(ctx)
	require.NoError(v.t, err)
	require.NoError(v.t, reads.Send(&sourcepb.ReadRequest{Handshake: &sourcepb.Handshake{Sot: true}}))
	r, err := reads.Recv()
	require.NoError(v.t, err)
	require.True(v.t, r.GetHandshake().GetSot())
	return reads
}

// DieAfterRead is a data plane that dies after one Read, of which it has acknowledged nothing.
func (v *Vertex) DieAfterRead(b Batch) {
	v.t.Helper()
	ctx, die := context.WithCancel(v.t.Context())
	defer die()
	_, ok := v.read(ctx, v.reads(ctx), b)
	require.True(v.t, ok)
}

// Source reads and acknowledges in turn, until stop, which waits for the batch under way.
func (v *Vertex) Source(b Batch) (stop func()) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	reads := v.reads(ctx)
	acks, err := sourcepb.NewSourceClient(v.conn).AckFn(ctx)
	require.NoError(v.t, err)
	require.NoError(v.t, acks.Send(&sourcepb.AckRequest{Handshake: &sourcepb.Handshake{Sot: true}}))
	a, err := acks.Recv()
	require.NoError(v.t, err)
	require.True(v.t, a.GetHandshake().GetSot())

	return loop(cancel, func() bool {
		offsets, ok := v.read(ctx, reads, b)
		return ok && (len(offsets) == 0 || v.ack(ctx, acks, offsets))
	})
}

// read is one Read.
func (v *Vertex) read(ctx context.Context, reads sourcepb.Source_ReadFnClient, b Batch) (offsets []*sourcepb.Offset, ok bool) {
	begin := time.Now()
	err := reads.Send(&sourcepb.ReadRequest{Request: &sourcepb.ReadRequest_Request{NumRecords: uint64(b.Size), TimeoutInMs: uint32(b.Timeout.Milliseconds())}})
	for err == nil {
		var r *sourcepb.ReadResponse
		if r, err = reads.Recv(); err != nil {
			break
		}
		if r.GetStatus().GetEot() {
			if took := time.Since(begin); took > b.Timeout+late {
				v.fault("a Read of %v took %v", b.Timeout, took)
			}
			return offsets, true
		}
		offsets = append(offsets, r.GetResult().GetOffset())
		v.came(string(r.GetResult().GetPayload()))
		if len(offsets) > b.Size {
			v.fault("a Read of %d had more", b.Size)
		}
	}
	v.failed(ctx, "Read", err)
	return nil, false
}

func (v *Vertex) came(value string) {
	v.arrived(1)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.values = append(v.values, value)
}

func (v *Vertex) ack(ctx context.Context, acks sourcepb.Source_AckFnClient, offsets []*sourcepb.Offset) bool {
	err := acks.Send(&sourcepb.AckRequest{Request: &sourcepb.AckRequest_Request{Offsets: offsets}})
	if err == nil {
		var a *sourcepb.AckResponse
		if a, err = acks.Recv(); err == nil && a.GetResult().GetSuccess() == nil {
			v.fault("an Ack had no success")
		}
	}
	if err != nil {
		v.failed(ctx, "Ack", err)
	}
	return err == nil
}
