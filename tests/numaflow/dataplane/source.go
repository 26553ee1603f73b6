package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	require.NoError(v.t,
		reads.Send(&sourcepb.ReadRequest{Handshake: &sourcepb.Handshake{Sot: true}}))
	r, err := reads.Recv()
	require.NoError(v.t, err)
	require.True(v.t, r.GetHandshake().GetSot())
	return reads
}

// DieAfterRead runs a data plane that dies after one Read, without acknowledging it.
func (v *Vertex) DieAfterRead(b Batch) {
	v.t.Helper()
	ctx, die := context.WithCancel(v.t.Context())
	defer die()
	offsets, ok := v.read(ctx, v.reads(ctx), b)
	require.True(v.t, ok)
	v.settle(offsets) // the next data plane may read them again
}

// Source runs a flow from a user-defined source to a built-in sink, until stop is called.
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
	if b.Timeout == 0 {
		b.Timeout = time.Second
	}
	s := &userSource{Vertex: v, ctx: ctx, batch: b, reads: reads, acks: acks}
	f := &flow{Batch: b, source: s, sink: builtInSink(b.SinkTime), end: cancel}
	return f.run()
}

// A userSource is a user-defined source.
type userSource struct {
	*Vertex
	ctx   context.Context
	batch Batch
	reads sourcepb.Source_ReadFnClient
	acks  sourcepb.Source_AckFnClient
	mu    sync.Mutex // guards acks: batches may be settled concurrently
}

func (s *userSource) read() (messages []*message, ok bool) {
	offsets, ok := s.Vertex.read(s.ctx, s.reads, s.batch)
	for _, o := range offsets {
		messages = append(messages, &message{id: offset(o), offset: o})
	}
	return messages, ok
}

func (s *userSource) settle(acked, nacked []*message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ack(s.ctx, s.acks, offsetsOf(acked)) && len(nacked) > 0 {
		if err := s.nack(s.ctx, offsetsOf(nacked)); err != nil {
			s.failed(s.ctx, "Nack", err)
		}
	}
}

func offsetsOf(messages []*message) (offsets []*sourcepb.Offset) {
	for _, m := range messages {
		offsets = append(offsets, m.offset)
	}
	return offsets
}

// Nack refuses messages on its own stream, as a data plane does when its sink has failed.
func (v *Vertex) Nack(offsets []*sourcepb.Offset) {
	v.t.Helper()
	require.NoError(v.t, v.nack(v.t.Context(), offsets))
}

func (v *Vertex) nack(ctx context.Context, offsets []*sourcepb.Offset) error {
	nack := &sourcepb.NackRequest{Request: []*sourcepb.NackRequest_Request{{Offsets: offsets}}}
	r, err := sourcepb.NewSourceClient(v.conn).NackFn(ctx, nack)
	if err != nil {
		return err
	}
	if r.GetResult().GetSuccess() == nil {
		return errors.New("a Nack had no success")
	}
	v.settle(offsets)
	return nil
}

// ReadOne makes one Read on its own stream, which stays open until the test ends.
func (v *Vertex) ReadOne(b Batch) (offsets []*sourcepb.Offset) {
	v.t.Helper()
	offsets, ok := v.read(v.t.Context(), v.reads(v.t.Context()), b)
	require.True(v.t, ok)
	return offsets
}

// Pending returns the backlog that the vertex reports.
func (v *Vertex) Pending() int64 {
	v.t.Helper()
	r, err := sourcepb.NewSourceClient(v.conn).PendingFn(v.t.Context(), &emptypb.Empty{})
	require.NoError(v.t, err)
	return r.GetResult().GetCount()
}

// read makes one Read.
func (v *Vertex) read(
	ctx context.Context, reads sourcepb.Source_ReadFnClient, b Batch,
) (offsets []*sourcepb.Offset, ok bool) {
	start := time.Now()
	request := &sourcepb.ReadRequest_Request{
		NumRecords: uint64(b.Size), TimeoutInMs: uint32(b.Timeout.Milliseconds()),
	}
	err := reads.Send(&sourcepb.ReadRequest{Request: request})
	for err == nil {
		var r *sourcepb.ReadResponse
		if r, err = reads.Recv(); err != nil {
			break
		}
		if r.GetStatus().GetEot() {
			v.readTook(time.Since(start), b.Timeout)
			return offsets, true
		}
		offsets = append(offsets, r.GetResult().GetOffset())
		v.received(r.GetResult())
		if len(offsets) > b.Size {
			v.fault("a Read of %d had more", b.Size)
		}
	}
	v.failed(ctx, "Read", err)
	return nil, false
}

// readTook checks how long a Read took.
func (v *Vertex) readTook(took, timeout time.Duration) {
	if took > timeout+late {
		v.fault("a Read of %v took %v", timeout, took)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lateRead = max(v.lateRead, took-timeout)
}

func (v *Vertex) received(m *sourcepb.ReadResponse_Result) {
	v.arrived(1)
	v.mu.Lock()
	twice := v.open[offset(m.GetOffset())]
	v.open[offset(m.GetOffset())] = true
	v.values = append(v.values, string(m.GetPayload()))
	v.mu.Unlock()
	if twice {
		v.fault("%s was delivered again before it was acknowledged", m.GetOffset())
	}
}

func offset(o *sourcepb.Offset) string {
	return fmt.Sprint(o.GetPartitionId(), " ", string(o.GetOffset()))
}

// settle forgets messages that were acknowledged or nacked.
func (v *Vertex) settle(offsets []*sourcepb.Offset) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range offsets {
		delete(v.open, offset(o))
	}
}

func (v *Vertex) ack(
	ctx context.Context, acks sourcepb.Source_AckFnClient, offsets []*sourcepb.Offset,
) bool {
	if len(offsets) == 0 {
		return true
	}
	request := &sourcepb.AckRequest_Request{Offsets: offsets}
	err := acks.Send(&sourcepb.AckRequest{Request: request})
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
