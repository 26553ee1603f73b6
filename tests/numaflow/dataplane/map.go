package dataplane

import (
	"context"
	"slices"
	"sync"
	"time"

	mappb "github.com/numaproj/numaflow-go/pkg/apis/proto/map/v1"
	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/stretchr/testify/require"
)

// concurrency is the number of data in flight in a map: Numaflow's default.
const concurrency = 500

// Map runs a flow from a built-in source through a user-defined map of any kind to a built-in sink,
// until stop is called. The function keys returns the keys of the i-th message.
func (v *Vertex) Map(b Batch, keys func(i int) []string) (stop func()) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	stream, err := mappb.NewMapClient(v.conn).MapFn(ctx)
	require.NoError(v.t, err)
	require.NoError(v.t, stream.Send(&mappb.MapRequest{Handshake: &mappb.Handshake{Sot: true}}))
	r, err := stream.Recv()
	require.NoError(v.t, err)
	require.True(v.t, r.GetHandshake().GetSot())

	f := &flow{
		Batch: b, source: &builtInSource{Batch: b, vertex: v, keys: keys},
		sink: builtInSink(b.SinkTime),
	}
	m := &mapping{Vertex: v, ctx: ctx, stream: stream, broken: f.stop, open: map[string]*message{}}
	f.stage = m.each
	f.end = func() {
		cancel()
		m.receiving.Wait()
	}
	if v.kind == BatchMap {
		f.stage = func(in <-chan *message, out chan<- *message) {
			go func() {
				defer close(out)
				chunks(in, f.Size, f.Timeout, func(chunk []*message) { m.batch(chunk, out) })
			}()
		}
	}
	return f.run()
}

// A mapping is the stream of a map.
type mapping struct {
	*Vertex
	ctx    context.Context
	stream mappb.Map_MapFnClient
	broken func() // called when the stream has failed

	receiving sync.WaitGroup // ends with the stream

	mu   sync.Mutex
	open map[string]*message // unanswered; nil: the stream has failed
}

// each maps single messages, many at a time.
func (m *mapping) each(in <-chan *message, out chan<- *message) {
	slots := make(chan struct{}, concurrency)
	go func() {
		defer close(out)
		for d := range in {
			slots <- struct{}{}
			if !m.send(d) {
				d.nack(0)
				out <- d
				<-slots
			}
		}
		for range concurrency {
			slots <- struct{}{}
		}
	}()
	m.receiving.Go(func() {
		for {
			done, _, err := m.receive()
			if err != nil {
				done = m.fail(err)
			}
			for _, d := range done {
				out <- d
				<-slots
			}
			if err != nil {
				return
			}
		}
	})
}

// batch maps one chunk at a time.
func (m *mapping) batch(chunk []*message, out chan<- *message) {
	sent := true
	for _, d := range chunk {
		sent = sent && m.send(d)
	}
	err := error(nil)
	if sent {
		err = m.stream.Send(&mappb.MapRequest{Status: &mappb.TransmissionStatus{Eot: true}})
	}
	for eot := false; sent && !eot && err == nil; {
		_, eot, err = m.receive()
	}
	m.mu.Lock()
	unanswered := len(m.open)
	m.mu.Unlock()
	switch {
	case err != nil:
		m.fail(err)
	case !sent: // the stream has failed before
	case unanswered > 0:
		m.fault("%d of %d data were not answered", unanswered, len(chunk))
	}
	for _, d := range chunk {
		if err != nil || !sent {
			d.nack(0)
		}
		out <- d
	}
}

// send sends a datum, unless the stream has failed. If it fails now, receive returns the error.
func (m *mapping) send(d *message) (ok bool) {
	m.mu.Lock()
	if m.open == nil {
		m.mu.Unlock()
		return false
	}
	m.open[d.id] = d
	m.mu.Unlock()
	_ = m.stream.Send(&mappb.MapRequest{
		Id: d.id, Request: &mappb.MapRequest_Request{Keys: d.keys, Value: d.value},
	})
	return true
}

// fail records that the stream has failed, nacks the unanswered messages and returns them.
func (m *mapping) fail(err error) (unanswered []*message) {
	m.failed(m.ctx, "Map", err)
	m.broken()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.open {
		d.nack(0)
		unanswered = append(unanswered, d)
	}
	m.open = nil
	return unanswered
}

// receive reads an answer. If it is the last one of a message, it returns the message. Each message
// must be answered once. Dropped messages do not count as arrivals.
func (m *mapping) receive() (done []*message, eot bool, err error) {
	r, err := m.stream.Recv()
	if err != nil {
		return nil, false, err
	}
	eot = r.GetStatus().GetEot() // of the batch, or of a stream's datum
	if eot && m.kind == BatchMap {
		return nil, true, nil
	}
	m.mu.Lock()
	d := m.open[r.GetId()]
	if d != nil && (eot || m.kind != MapStream) {
		delete(m.open, d.id)
		done = []*message{d}
	}
	m.mu.Unlock()
	if d == nil {
		m.fault("datum %s was answered twice, or never sent", r.GetId())
		return nil, eot, nil
	}
	for _, result := range r.GetResults() {
		switch {
		case slices.Contains(result.GetTags(), mapper.NACK):
			d.nack(time.Duration(result.GetNackOptions().GetDelay()) * time.Millisecond)
			m.count(&m.refused, 1)
		case !slices.Contains(result.GetTags(), mapper.DROP):
			m.arrived(1)
		}
	}
	return done, eot, nil
}
