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
	used := l.line("used")
	for i := range 2 * mostLimits {
		l.line(fmt.Sprint(i))
		require.Same(t, used, l.line("used"))
	}
	assert.Equal(t, mostLimits, l.lines.Len())
	for i := range mostLeases + 50 {
		require.NoError(t, l.Publish(t.Context(), "c", fmt.Sprint(i), nil, time.Minute))
	}
	assert.Equal(t, mostLeases, l.leases.Len())
}
