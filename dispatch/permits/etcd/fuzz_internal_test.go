package etcdpermits

import (
	"context"
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/pool"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

func fuzzed() []*permits.Request {
	return []*permits.Request{{Allocate: &permits.Allocate{Request: schedule.Request{
		Subscription: "group", Weight: 1, Demand: 100, Want: 5, Round: 0.1, Rate: 100, Source: "a",
		Rev: schedule.Revision{Number: 1}, Nonce: 7,
	}}}}
}

// FuzzState: whatever etcd has as a schedule, a request is answered within bounds, and replaces
// what is out of bounds; one of a newer version stays.
func FuzzState(f *testing.F) {
	var empty stored
	text, err := json.Marshal(empty.apply(fuzzed(), 100))
	require.NoError(f, err)
	f.Add(text, 100.5)
	f.Add([]byte(`{"version":6}`), 1.0)
	f.Add([]byte(`{"version":3,"state":{"Inc":1,"Rate":1e300},"subscriptions":{"group":{"Epoch":-1}}}`), 1.0)
	f.Fuzz(func(t *testing.T, text []byte, now float64) {
		if !(now >= 1 && now <= 1e10) {
			return
		}
		promptly.Do(t, func() {
			var m limit
			if err := m.load([]*mvccpb.KeyValue{{Value: text, ModRevision: 1, Lease: 1}}); err != nil {
				require.ErrorContains(t, err, "upgrade")
				return
			}
			requests := fuzzed()
			r := requests[0]
			next := m.stored.apply(requests, now)
			r.Check()
			require.NoError(t, r.Err)
			_, err := json.Marshal(next)
			require.NoError(t, err)
			if r.Damaged() != nil {
				next.apply(requests, now+0.001)
				r.Check()
				require.NoError(t, r.Err)
				require.NoError(t, r.Damaged())
			}
		})
	})
}

// FuzzClock: whatever is published as the clock of a prefix, a process's clock runs on, and never
// back.
func FuzzClock(f *testing.F) {
	f.Add([]byte("1.5"))
	f.Add([]byte("NaN"))
	f.Add([]byte("1e300"))
	f.Add([]byte("-1e10"))
	f.Add([]byte("-Inf"))
	f.Fuzz(func(t *testing.T, text []byte) {
		promptly.Do(t, func() {
			c, at := newClock(), time.Now()
			before := c.now(at)
			late := c.take(text)
			require.GreaterOrEqual(t, late, time.Duration(0))
			require.GreaterOrEqual(t, c.now(at.Add(time.Second)), before+0.99)
			require.LessOrEqual(t, c.now(at), maxTime+1.0)
		})
	})
}

// FuzzReply: whatever etcd answers, each call ends, with an error or with an answer within bounds.
// etcd gives three answers to each call, and then fails.
func FuzzReply(f *testing.F) {
	var state stored
	schedules, err := json.Marshal(state.apply(fuzzed(), 100))
	require.NoError(f, err)
	text := func(m proto.Message) []byte {
		text, err := proto.Marshal(m)
		require.NoError(f, err)
		return text
	}
	found := func(texts ...string) *pb.RangeResponse {
		r := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 7}, Count: int64(len(texts))}
		for _, text := range texts {
			r.Kvs = append(r.Kvs, &mvccpb.KeyValue{Key: []byte("/throttle/a"), Value: []byte(text), ModRevision: 5, Lease: 3})
		}
		return r
	}
	get := func(r *pb.RangeResponse) *pb.ResponseOp {
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: r}}
	}
	lease := text(&pb.LeaseGrantResponse{ID: 3, TTL: 100})
	done := text(&pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 8}, Succeeded: true})
	txn := func(all ...*pb.ResponseOp) []byte { return text(&pb.TxnResponse{Responses: all}) }
	f.Add([]byte{}, lease, done)
	f.Add(text(found(string(schedules))), lease, done)
	f.Add(text(found(string(schedules))), lease, txn(get(found(string(schedules)))))
	f.Add(text(found(`{"version":3,"lease":3}`)), text(&pb.LeaseTimeToLiveResponse{ID: 3, TTL: -1 << 62}), done)
	f.Add(text(found("1.5", "%")), []byte{}, []byte{})
	f.Add(txn(get(found("1")), get(nil)), done, done) // rows
	f.Add(txn(get(found(""))), done, done)            // their head
	f.Add(txn(get(found("1")), get(nil), get(nil)), done, done)
	f.Add(txn(&pb.ResponseOp{}), done, done)
	f.Add([]byte{}, []byte{}, []byte{}) // neither headers nor responses
	f.Add(text(&pb.RangeResponse{More: true}), text(&pb.RangeResponse{More: true}), text(found()))
	f.Add(text(&pb.StatusResponse{DbSize: 1 << 40, DbSizeInUse: -1 << 63, DbSizeQuota: 1 << 62}), lease, done)
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		promptly.Do(t, func() {
			etcd := &answers{}
			key, two := "throttle:limit:{a}", []string{"a", "b"}
			q := fuzzed()[0]
			q.Key = key
			beat := &permits.Request{Key: key, Heartbeat: &permits.Heartbeat{Member: "a", TTL: 10, Rate: 100}}
			draw := &permits.Request{Key: key, Draw: &permits.Draw{
				Terms: pool.Terms{Names: []string{"red"}, Permits: 100, Period: 1, TTL: 10},
				Visit: pool.Visit{Group: "red", Member: "a", Want: 5}, Rate: 100,
			}}
			for _, call := range []func(context.Context, *Store){
				func(ctx context.Context, s *Store) { s.Do(ctx, []*permits.Request{q}) },
				func(ctx context.Context, s *Store) { s.Do(ctx, []*permits.Request{beat}) },
				func(ctx context.Context, s *Store) { s.Do(ctx, []*permits.Request{draw}) },
				func(ctx context.Context, s *Store) { _, _, _ = s.State(ctx, key) },
				func(ctx context.Context, s *Store) { _, _, _ = s.Value(ctx, key) },
				func(ctx context.Context, s *Store) {
					_ = s.Update(ctx, key, time.Minute, func(old []byte, _ float64) []byte { return old })
				},
				func(ctx context.Context, s *Store) { _ = s.Publish(ctx, "c", "a", nil, time.Minute) },
				func(ctx context.Context, s *Store) { _, _ = s.Published(ctx, "c") },
				func(ctx context.Context, s *Store) { _, _ = s.Replicas(ctx, "c") },
				func(ctx context.Context, s *Store) {
					_, _ = s.SetRows(ctx, key, nil, time.Minute, map[string][]byte{"a": nil})
				},
				func(ctx context.Context, s *Store) {
					if rows, err := s.Rows(ctx, key, two); err == nil {
						require.Len(t, rows, len(two))
					}
				},
				func(ctx context.Context, s *Store) { _, _ = s.RowNames(ctx, key) },
				func(ctx context.Context, s *Store) {
					ctx, etcd.failed = context.WithCancel(ctx)
					client := s.attempt.client
					client.Watcher = noWatch{etcd.failed}
					newClock().run(ctx, client, "clock", s.space.err)
				},
				func(_ context.Context, s *Store) {
					var status pb.StatusResponse
					if proto.Unmarshal(first, &status) == nil {
						next := s.space.look(status.DbSizeInUse, status.DbSizeQuota)
						require.True(t, next >= often && next <= seldom, "%v", next)
					}
				},
			} {
				*etcd = answers{left: [][]byte{first, second, third}, failed: func() {}}
				call(t.Context(), etcd.store(t.Context()))
			}
			q.Check()
			if q.Err == nil {
				require.True(t, q.Allocate.Reply.Sound(q.Allocate.Request))
			}
			if draw.Err == nil {
				require.True(t, draw.Draw.Drawn.N >= 0 && draw.Draw.Drawn.N <= 5, "%+v", draw.Draw.Drawn)
			}
		})
	})
}

// answers is a connection to an etcd that gives these answers, whatever it is asked, and then
// fails.
type answers struct {
	grpc.ClientStream // of KeepAlive
	left              [][]byte
	failed            func() // called when it fails
}

// store is a Store that is connected to that etcd, until ctx ends.
func (a *answers) store(ctx context.Context) *Store {
	s := Open(clientv3.Config{Context: ctx}, "", time.Second)
	client := clientv3.NewCtxClient(ctx)
	client.KV = clientv3.NewKVFromKVClient(pb.NewKVClient(a), client)
	client.Lease = clientv3.NewLeaseFromLeaseClient(pb.NewLeaseClient(a), client, time.Second)
	s.attempt = &attempt{done: make(chan struct{}), client: client}
	close(s.attempt.done)
	close(s.clock.synced)
	return s
}

// Invoke implements grpc.ClientConnInterface.
func (a *answers) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	return a.RecvMsg(reply)
}

// NewStream implements grpc.ClientConnInterface.
func (a *answers) NewStream(
	context.Context, *grpc.StreamDesc, string, ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return a, nil
}

// RecvMsg implements grpc.ClientStream.
func (a *answers) RecvMsg(reply any) error {
	if len(a.left) == 0 {
		a.failed()
		return io.ErrUnexpectedEOF
	}
	next := a.left[0]
	a.left = a.left[1:]
	err := proto.Unmarshal(next, reply.(proto.Message))
	if err != nil {
		a.failed()
	}
	return err
}

// SendMsg implements grpc.ClientStream.
func (a *answers) SendMsg(any) error { return nil }

// CloseSend implements grpc.ClientStream.
func (a *answers) CloseSend() error { return nil }

// noWatch is a Watcher that ends what asks for a watch.
type noWatch struct{ end func() }

// Watch implements clientv3.Watcher.
func (w noWatch) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	w.end()
	return nil
}

// RequestProgress implements clientv3.Watcher.
func (noWatch) RequestProgress(context.Context) error { return nil }

// Close implements clientv3.Watcher.
func (noWatch) Close() error { return nil }
