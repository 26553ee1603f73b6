package etcdpermits

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestBounded: what a store remembers of limits and leases is bounded, and those in use stay.
func TestBounded(t *testing.T) {
	l := Open(clientv3.Config{Endpoints: []string{services.Etcd(t).Endpoint}}, "bounded", 0)
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
