package etcdpermits

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestBounded: what a store remembers of limits and leases is bounded, and those in use stay.
func TestBounded(t *testing.T) {
	l := Open(clientv3.Config{Endpoints: []string{services.Etcd(t).Endpoint}}, "bounded", 10*time.Second)
	defer func() { require.NoError(t, l.Close()) }()
	used := l.limit("used")
	for i := range 2 * maxLimits {
		l.limit(fmt.Sprint(i))
		require.Same(t, used, l.limit("used"))
	}
	assert.Equal(t, maxLimits, l.limits.Len())
	for i := range maxLeases + 50 {
		require.NoError(t, l.Publish(t.Context(), "c", fmt.Sprint(i), nil, time.Minute))
	}
	assert.Equal(t, maxLeases, l.leases.Len())
}

// TestDelay: what an answer says of the future is as far ahead when it comes late.
func TestDelay(t *testing.T) {
	answer := func(strict bool) *permits.Request {
		a := &permits.Allocate{Reply: schedule.Reply{N: 3, Start: 0.5, Lead: 0.5, Gap: 0.1, Now: 100}}
		a.Strict, a.Round = strict, 0.1
		return &permits.Request{Allocate: a}
	}
	fair, strict := answer(false), answer(true)
	delay([]*permits.Request{fair, strict}, 50*time.Millisecond, 20*time.Millisecond)
	for _, r := range []*permits.Request{fair, strict} {
		require.NoError(t, r.Err)
		assert.InDelta(t, 100.05, r.Allocate.Reply.Now, 1e-9)
	}
	assert.InDelta(t, 0.47, fair.Allocate.Reply.Start, 1e-9, "later by what is usual")
	assert.InDelta(t, 0.45, fair.Allocate.Reply.Lead, 1e-9)
	assert.InDelta(t, 0.45, strict.Allocate.Reply.Start, 1e-9)

	fair, strict = answer(false), answer(true)
	delay([]*permits.Request{fair, strict}, 750*time.Millisecond, 20*time.Millisecond)
	assert.Equal(t, 1.0, fair.Allocate.Reply.N, "two are over for more than a round")
	assert.Error(t, strict.Err)
}

// TestApply: a lost state takes all subscriptions with it, and a subscription counts for the epoch
// after that of its last request.
func TestApply(t *testing.T) {
	a := &permits.Allocate{Request: schedule.Request{
		Subscription: "own", Weight: 1, Demand: 10, Want: 1, Round: 0.1, Rate: 10, Nonce: 1,
	}}
	apply := func(s stored) []string {
		next := s.apply([]*permits.Request{{Allocate: a}}, 100)
		return slices.Sorted(maps.Keys(next.Subs))
	}
	s := stored{Version: schedule.Version, Subs: map[string]schedule.Sub{}}
	s.State, _, _ = schedule.Allocate(s.State, schedule.Sub{}, a.Request, 99)
	for i, name := range []string{"this", "previous", "over"} {
		s.Subs[name] = schedule.Sub{Epoch: s.State.Epoch - int64(i)}
	}
	assert.Equal(t, []string{"own", "previous", "this"}, apply(s))
	assert.False(t, a.Reply.Lost)
	assert.Len(t, s.Subs, 3, "it is as it was")
	s.State.Tail = 1e300
	assert.Equal(t, []string{"own"}, apply(s))
	assert.True(t, a.Reply.Lost)
}

// TestTurn: a process that has written leaves others as much time as that took.
func TestTurn(t *testing.T) {
	proxy := services.NewProxy(t, services.Etcd(t).Endpoint)
	proxy.Latency(50 * time.Millisecond)
	s := openNear(t, proxy.Addr)
	require.NoError(t, allocate(t, s)) // connects
	turn := &s.limit("limit").turn
	*turn = time.Time{}
	start := time.Now()
	require.NoError(t, allocate(t, s)) // which takes 100 ms
	end := time.Now()
	assert.WithinRange(t, *turn, start.Add(200*time.Millisecond), end.Add(end.Sub(start)))
	*turn = end.Add(200 * time.Millisecond)
	require.NoError(t, allocate(t, s))
	assert.Greater(t, time.Since(end), 200*time.Millisecond)
}

// TestLeases: processes that share a limit use the lease of the first of them. Where it has gone,
// while the limit is there, as in another etcd to which keys were copied, the next process to write
// grants one.
func TestLeases(t *testing.T) {
	e := services.Etcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	stores := []*Store{openNear(t, e.Endpoint), openNear(t, e.Endpoint)}
	read := func() *mvccpb.KeyValue {
		got, err := client.Get(t.Context(), permits.EtcdKey(stores[0].prefix, "limit"))
		require.NoError(t, err)
		require.Len(t, got.Kvs, 1)
		return got.Kvs[0]
	}
	require.NoError(t, allocate(t, stores[0]))
	first := read()
	for i := range 6 {
		require.NoError(t, allocate(t, stores[i%2]))
	}
	last := read()
	assert.Equal(t, first.Lease, last.Lease)
	_, err = client.Revoke(t.Context(), clientv3.LeaseID(last.Lease))
	require.NoError(t, err)
	_, err = client.Put(t.Context(), string(last.Key), string(last.Value))
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, allocate(t, stores[0]))
	}
	now := read()
	assert.NotZero(t, now.Lease)
	assert.NotEqual(t, first.Lease, now.Lease)
	s, err := parse(now)
	require.NoError(t, err)
	assert.EqualValues(t, 9, s.State.Seq)
}

func openNear(t *testing.T, endpoint string) *Store {
	s := Open(clientv3.Config{Endpoints: []string{endpoint}}, "near", 10*time.Second)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// allocate requests a permit of the same limit.
func allocate(t *testing.T, s *Store) error {
	_, err := permitstest.Allocate(t.Context(), s, "limit", schedule.Request{
		Subscription: "group", Weight: 1, Demand: 1e9, Want: 1, Round: 0.1, Rate: 1000, Nonce: 7,
	})
	return err
}

// TestSpace: permits are written up to four fifths of the quota, or of etcd's default.
func TestSpace(t *testing.T) {
	for _, c := range []struct {
		inUse, quota int64
		next         time.Duration
		err          string
	}{
		{100 << 20, 8 << 30, seldom, ""},
		{8 << 20, 16 << 20, 150 * time.Millisecond, ""}, // 4.8 MiB are left
		{12 << 20, 16 << 20, often, ""},
		{13 << 20, 16 << 20, often, "etcd uses 13 of its quota of 16 MiB, and"},
		{1 << 30, 0, 19200 * time.Millisecond, ""},
		{1700 << 20, 0, often, "etcd uses 1700 of its quota of 2048 MiB (the default: it does not tell its own"},
	} {
		var s space
		assert.InDelta(t, c.next, s.look(c.inUse, c.quota), float64(10*time.Millisecond), "%+v", c)
		if c.err == "" {
			assert.NoError(t, s.err())
		} else {
			assert.ErrorContains(t, s.err(), c.err)
		}
	}
}

// TestSamePage: an etcd that answers with the same page of status records again and again is an
// error.
func TestSamePage(t *testing.T) {
	for _, page := range []*pb.RangeResponse{
		{More: true},
		{More: true, Kvs: []*mvccpb.KeyValue{{Key: []byte("/throttle/a"), Value: make([]byte, permits.MaxRecord+1)}}},
		{More: true, Kvs: []*mvccpb.KeyValue{{Key: []byte("/u"), Value: make([]byte, permits.MaxRecord+1)}}},
	} {
		text, err := proto.Marshal(page)
		require.NoError(t, err)
		etcd := &answers{left: slices.Repeat([][]byte{text}, 5), failed: func() {}}
		_, err = etcd.store(t.Context()).Published(t.Context(), "c")
		assert.ErrorContains(t, err, "the same page again")
	}
}

// TestDialsAgain: after an attempt to connect has failed, the next request makes another one.
func TestDialsAgain(t *testing.T) {
	dialed := 0
	s := Open(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}}, "test", time.Second,
		WithTLS(func() (*tls.Config, error) { dialed++; return nil, errors.New("no certificate yet") }))
	for i := range 3 {
		assert.ErrorContains(t, allocate(t, s), "no certificate yet")
		assert.Equal(t, i+1, dialed)
	}
	assert.NoError(t, s.Close())
}
