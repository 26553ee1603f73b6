package etcdpermits

import (
	"fmt"
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
