package dataplane

import (
	"context"
	"fmt"
	"time"

	sourcepb "github.com/numaproj/numaflow-go/pkg/apis/proto/source/v1"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
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
	offsets, ok := v.read(ctx, v.reads(ctx), b)
	require.True(v.t, ok)
	v.settle(offsets) // as far as the next one is concerned
}

// Source reads and acknowledges in turn, until stop, which waits for the batch under way. With ReadAhead the Acks of a batch come
// after the next Read.
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

	var behind []*sourcepb.Offset
	end := func() {
		v.ack(ctx, acks, behind)
		cancel()
	}
	return loop(end, func() bool {
		offsets, ok := v.read(ctx, reads, b)
		if b.ReadAhead {
			offsets, behind = behind, offsets
		}
		return ok && v.ack(ctx, acks, offsets)
	})
}

// Nack refuses messages, on a connection of its own streams, as a data plane does whose sink has failed for good.
func (v *Vertex) Nack(offsets []*sourcepb.Offset) {
	v.t.Helper()
	r, err := sourcepb.NewSourceClient(v.conn).NackFn(v.t.Context(), &sourcepb.NackRequest{Request: []*sourcepb.NackRequest_Request{{Offsets: offsets}}})
	require.NoError(v.t, err)
	require.NotNil(v.t, r.GetResult().GetSuccess())
	v.settle(offsets)
}

// ReadOne is one Read on streams of its own, which stay open until the test ends.
func (v *Vertex) ReadOne(b Batch) (offsets []*sourcepb.Offset) {
	v.t.Helper()
	offsets, ok := v.read(v.t.Context(), v.reads(v.t.Context()), b)
	require.True(v.t, ok)
	return offsets
}

// Pending is the backlog that the vertex tells.
func (v *Vertex) Pending() int64 {
	v.t.Helper()
	r, err := sourcepb.NewSourceClient(v.conn).PendingFn(v.t.Context(), &emptypb.Empty{})
	require.NoError(v.t, err)
	return r.GetResult().GetCount()
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
		v.came(r.GetResult())
		if len(offsets) > b.Size {
			v.fault("a Read of %d had more", b.Size)
		}
	}
	v.failed(ctx, "Read", err)
	return nil, false
}

func (v *Vertex) came(m *sourcepb.ReadResponse_Result) {
	v.arrived(1)
	v.mu.Lock()
	twice := v.open[offset(m.GetOffset())]
	v.open[offset(m.GetOffset())] = true
	v.values = append(v.values, string(m.GetPayload()))
	v.mu.Unlock()
	if twice {
		v.fault("%s came again before it was acknowledged", m.GetOffset())
	}
}

func offset(o *sourcepb.Offset) string {
	return fmt.Sprint(o.GetPartitionId(), " ", string(o.GetOffset()))
}

// settle forgets what was acknowledged or refused.
func (v *Vertex) settle(offsets []*sourcepb.Offset) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range offsets {
		delete(v.open, offset(o))
	}
}

func (v *Vertex) ack(ctx context.Context, acks sourcepb.Source_AckFnClient, offsets []*sourcepb.Offset) bool {
	if len(offsets) == 0 {
		return true
	}
	err := acks.Send(&sourcepb.AckRequest{Request: &sourcepb.AckRequest_Request{Offsets: offsets}})
	if err == nil {
		var a *sourcepb.AckResponse
		if a, err = acks.Recv(); err == nil && a.GetResult().GetSuccess() == nil {
			v.fault("an Ack had no success")
		}
	}
	if err != nil {
		v.failed(ctx, "Ack", err)
		return false
	}
	v.settle(offsets)
	return true
}
