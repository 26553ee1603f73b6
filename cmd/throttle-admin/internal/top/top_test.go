package top

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

const orders = "kafka://public/default/orders"

// TestTop: of two replicas on a real Redis, the command shows what they do.
func TestTop(t *testing.T) {
	store, permits, name := "file:"+t.TempDir()+"/p.yaml", services.Patient(services.Redis(t)), services.Name(t)
	admin := func(args ...string) string {
		t.Helper()
		flags := []string{"--policies", store, "--permits", permits, "--cluster", name}
		status, out, errs := clitest.Run(t.Context(), []cli.Family{Commands, policies.Commands}, append(flags, args...)...)
		require.Zero(t, status, errs)
		return out
	}
	assert.Contains(t, admin("top", "--once"), "0 topics, 0 waiting calls, 0 replicas")
	admin("set-msg-rate", orders, "100")
	for range 2 {
		lim, err := throttle.Open(t.Context(), store, permits, throttle.WithCluster(name))
		require.NoError(t, err)
		defer func() { assert.NoError(t, lim.Close()) }()
		sub, err := lim.Subscription(orders, "billing")
		require.NoError(t, err)
		go func() {
			for err := error(nil); err == nil; {
				sub.ReportBacklog(5000)
				_, err = sub.Acquire(t.Context(), 1)
			}
		}()
	}
	throttletest.Until(t, "it is throttled, at its rate", func() bool {
		var o cluster.Overview
		require.NoError(t, json.Unmarshal([]byte(admin("top", "--once", "-o", "json", "--filter", "throttled")), &o))
		if len(o.Rows) != 1 {
			return false
		}
		r := o.Rows[0]
		return r.Topic == orders && r.Limit == cluster.Limit{Reason: dispatch.ReasonMessages, Rate: 100} &&
			r.Rate > 1 && r.Replicas == 2 && r.Backlog == 10_000 && !r.BehindSince.IsZero() && r.WaitP99 > 0
	})
	out := admin("top", "--once")
	assert.Contains(t, out, "1 topic, 1 throttled, ")
	tables := plain(t, "--policies", store, "--permits", permits, "--cluster", name)
	assert.GreaterOrEqual(t, len(tables), 3, "one each second, until it is ended")
	assert.Regexp(t, `^1 topic, 1 throttled, .*\nTOPIC [^/]*\n`+orders+` +throttled +\S+ +100/s `, tables[2])
	assert.Regexp(t, `\n`+orders+` +throttled +\S+/s +100/s +\S+ +10k `, out)
}

// plain returns the tables that top --plain prints, of which it waits for four, and then ends it.
func plain(t *testing.T, flags ...string) []string {
	in, out := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	var status int
	done := make(chan struct{})
	go func() {
		defer close(done)
		status = cli.Run(ctx, append(flags, "top", "--plain"), strings.NewReader(""), out, io.Discard, Commands)
		_ = out.Close() // it returns nil
	}()
	var tables []string
	text := ""
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if text += lines.Text() + "\n"; lines.Text() == "" {
			tables, text = append(tables, strings.TrimSpace(text)), ""
		}
		if len(tables) == 4 {
			cancel()
		}
	}
	<-done
	cancel()
	assert.Zero(t, status)
	return tables
}

// TestTopWithoutPolicies: top goes on without the policy store, and says so.
func TestTopWithoutPolicies(t *testing.T) {
	permits, node := services.Patient(services.Redis(t)), services.Etcd(t)
	once := func() string {
		status, out, errs := clitest.Run(t.Context(), []cli.Family{Commands}, "top", "--once",
			"--policies", "etcd://"+node.Endpoint, "--permits", permits, "--cluster", services.Name(t))
		require.Zero(t, status, errs)
		assert.Contains(t, out, "0 topics, ")
		return out
	}
	assert.NotContains(t, once(), "not reached")
	node.Stop()
	throttletest.Until(t, "the policy store is missed", func() bool {
		return strings.Contains(once(), "policy store not reached for ")
	})
	node.Start()
	throttletest.Until(t, "it is back", func() bool { return !strings.Contains(once(), "not reached") })
}

func TestTopFaults(t *testing.T) {
	for want, args := range map[string][]string{
		`--permits: missing`: {"top"},
		`--sort "x": unknown order: want throttled, topic, `: {"top", "--sort", "x"},
		`--limit "0": out of range`:                          {"top", "--limit", "0", "--once"},
		`"orders": unexpected argument`:                      {"top", "orders"},
	} {
		status, _, errs := clitest.Run(t.Context(), []cli.Family{Commands}, args...)
		assert.Equal(t, cli.ExitUsage, status, errs)
		assert.Contains(t, errs, want)
	}
	status, _, errs := clitest.Run(t.Context(), []cli.Family{Commands}, "top", "--once", "--permits", "redis://127.0.0.1:1")
	assert.Equal(t, cli.ExitFailed, status)
	assert.Contains(t, errs, "permit store: ")
}
