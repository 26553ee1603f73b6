package dev

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// runDev runs dev until f returns, which gets the URL of the policy store.
func runDev(t *testing.T, f func(policiesURL string), args ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	var errs bytes.Buffer
	status := make(chan int, 1)
	go func() {
		args = append([]string{"dev"}, args...)
		status <- cli.Run(ctx, args, strings.NewReader(""), in, &errs, Commands)
		_ = in.Close() // never fails
	}()
	lines := make([]byte, 200)
	n, err := out.Read(lines)
	require.NoError(t, err, "dev ended without output")
	match := regexp.MustCompile(`^export THROTTLE_POLICIES=(etcd://127.0.0.1:\d+/throttle(?:\?tls=true)?)\n` +
		`export THROTTLE_PERMITS=etcd://127.0.0.1:\d+/throttle(?:\?tls=true)?\n$`).FindSubmatch(lines[:n])
	require.NotNil(t, match, "%s", lines[:n])
	f(string(match[1]))
	stop()
	select {
	case got := <-status:
		assert.Equal(t, cli.ExitDone, got, errs.String())
	case <-time.After(throttletest.Patience):
		t.Fatal("dev runs on after its context has ended")
	}
}

func TestDevKeepsPolicies(t *testing.T) {
	dir := t.TempDir()
	scope := policy.NamespaceScope("public", "", "default")
	open := func(policiesURL string) configstore.Store {
		store, err := throttle.OpenPolicies(t.Context(), policiesURL)
		require.NoError(t, err)
		return store
	}
	runDev(t, func(policiesURL string) {
		store := open(policiesURL)
		set := func(s configstore.Snapshot) ([]configstore.Change, error) {
			return s.Set(scope, policy.Policy{MessageRate: policy.PerSecond(500)}), nil
		}
		_, err := configstore.Edit(t.Context(), store, configstore.By{}, set)
		require.NoError(t, err)
		require.NoError(t, store.Close())
	}, "--data", dir)
	runDev(t, func(policiesURL string) {
		store := open(policiesURL)
		s, err := store.List(t.Context())
		require.NoError(t, err)
		kept, _ := s.Find(configstore.Key{Scope: scope})
		assert.Equal(t, policy.Policy{MessageRate: policy.PerSecond(500)}, kept)
		require.NoError(t, store.Close())
	}, "--data", dir)
	runDev(t, func(policiesURL string) {
		store := open(policiesURL)
		s, err := store.List(t.Context())
		require.NoError(t, err)
		assert.Empty(t, s.Entries, "a temporary store is empty")
		require.NoError(t, store.Close())
	})
}

func TestDevListensEverywhere(t *testing.T) {
	for _, listen := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		runDev(t, func(policiesURL string) {
			status, _, errs := clitest.Run(t.Context(), []cli.Family{policies.Commands},
				"list", "--policies", policiesURL)
			assert.Equal(t, cli.ExitDone, status, errs)
		}, "--listen", listen, "--allow-remote")
		status, out, errs := clitest.Run(t.Context(), []cli.Family{Commands}, "dev", "--listen", listen)
		assert.Equal(t, cli.ExitUsage, status)
		assert.Empty(t, out)
		assert.Contains(t, errs, `listen "`+listen+`": other machines could read and change all policies`)
		assert.Contains(t, errs, "--allow-remote")
	}
}

func TestDevRefusesDataInUse(t *testing.T) {
	dir := t.TempDir()
	runDev(t, func(string) {
		status, out, errs := clitest.Run(t.Context(), []cli.Family{Commands}, "dev", "--data", dir)
		assert.Equal(t, cli.ExitFailed, status)
		assert.Empty(t, out)
		assert.Equal(t, "throttle-admin: dev: "+dir+": is used by another throttle-admin dev\n"+
			"hint: stop that one, or use another directory: throttle-admin dev --data DIR\n", errs)
	}, "--data", dir)
}

// TestDevTLS: dev serves TLS to clients with a certificate of its authority, and to no others.
func TestDevTLS(t *testing.T) {
	server, client := services.TLS(t)
	files := "&ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	runDev(t, func(policiesURL string) {
		for options, want := range map[string]string{
			files: "", files[:strings.Index(files, "&cert")]: "does not answer",
		} {
			status, _, errs := clitest.Run(t.Context(), []cli.Family{policies.Commands},
				"list", "--policies", policiesURL+options)
			assert.Equal(t, want == "", status == cli.ExitDone, errs)
			assert.Contains(t, errs, want)
		}
	}, "--tls-cert", server.Cert, "--tls-key", server.Key, "--tls-ca", server.CA)
}
