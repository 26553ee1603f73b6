package cli_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestPolicyPing asks the policy store over and over: on one connection while it answers, and at
// once after an outage.
func TestPolicyPing(t *testing.T) {
	t.Parallel()
	proxy := services.NewProxy(t, services.Etcd(t).Endpoint)
	ping := (&cli.App{PoliciesURL: "etcd://" + proxy.Addr}).NewPolicyPing()
	defer ping.Close()
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return ping.Ask(ctx)
	}
	for range 5 {
		require.NoError(t, ask())
	}
	assert.Equal(t, 1, proxy.Connections())

	proxy.Cut()
	for range 4 { // a client that reconnects waits longer after each attempt
		require.ErrorContains(t, ask(), proxy.Addr)
	}
	proxy.Restore()
	require.NoError(t, ask())
}
