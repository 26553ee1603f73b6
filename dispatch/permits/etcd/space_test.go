package etcdpermits_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	configetcd "github.com/dispatchthrottle/throttle/configstore/etcd"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// TestLeavesRoomForPolicies: permits are written no more when etcd is almost full of their history,
// so that policies can still be written. They are again when the history has been compacted.
func TestLeavesRoomForPolicies(t *testing.T) {
	e := services.EtcdWithQuota(t, 8<<20)
	l := open(t, e.Endpoint)
	const refused = "of its quota of 8 MiB, and the rest is kept for policies"
	require.EventuallyWithT(t, func(c *assert.CollectT) { // more than the quota, if it were allowed
		var writers sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			writers.Go(func() {
				for range 200 {
					if errs[i] != nil {
						return
					}
					_, errs[i] = permitstest.Allocate(t.Context(), l, fmt.Sprint("limit ", i), request(1e6))
				}
			})
		}
		writers.Wait()
		for _, err := range errs {
			assert.ErrorContains(c, err, refused)
		}
	}, throttletest.Patience, time.Millisecond)
	client := e.Client()
	for i := range 200 {
		_, err := client.Put(t.Context(), fmt.Sprint("/throttle/policies/", i), string(make([]byte, 1000)))
		require.NoError(t, err, "policies have room")
	}
	policies, err := configetcd.Open(t.Context(), configetcd.Config{Endpoints: []string{e.Endpoint}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, policies.Close()) }()
	paused := true
	_, err = policies.Apply(t.Context(), configstore.Commit{Changes: []configstore.Change{{
		Key: configstore.Key{Scope: policy.ClusterScope()}, Settings: policy.Policy{Paused: &paused},
	}}})
	require.NoError(t, err, "pause still works")
	assert.ErrorContains(t, l.Publish(t.Context(), "c", "r", []byte("{}"), time.Minute), refused)
	_, _, err = l.State(t.Context(), "limit 1")
	require.NoError(t, err, "permits can be read")
	revision := func() int64 {
		got, err := client.Get(t.Context(), "/x")
		require.NoError(t, err)
		return got.Header.Revision
	}
	before := revision()
	time.Sleep(3 * time.Second)
	assert.Equal(t, before, revision(), "the clock takes no room, either")

	e.Compact()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := permitstest.Allocate(t.Context(), l, "limit 1", request(1e6))
		assert.NoError(c, err)
	}, throttletest.Patience, 10*time.Millisecond)
}
