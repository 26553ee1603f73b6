package dataplane

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
)

// Build builds the command in a directory, and returns its binary.
func Build(t testing.TB, directory string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "vertex")
	out, err := exec.Command("go", "build", "-o", binary, directory).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// Env is the environment of MonoVertex orders in namespace team, with a policy of some fields, in YAML's flow form, and a ledger.
func Env(t testing.TB, fields, ledger string) []string {
	t.Helper()
	policies := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(policies, []byte("schema: 1\npolicies:\n  - {scope: numaflow://team/orders/orders, "+fields+"}\n"), 0o600))
	return []string{
		throttle.EnvStore + "=file:" + policies, throttle.EnvLedger + "=" + ledger,
		"NUMAFLOW_NAMESPACE=team", "NUMAFLOW_MONO_VERTEX_NAME=orders",
	}
}

// Window is the most that arrived in any d from a time on, at all vertices together.
func Window(d time.Duration, from time.Time, vertices ...*Vertex) (most int) {
	var all []time.Time
	for _, v := range vertices {
		all = append(all, v.Arrivals()...)
	}
	all = slices.DeleteFunc(all, func(at time.Time) bool { return at.Before(from) })
	slices.SortFunc(all, time.Time.Compare)
	first := 0
	for i, at := range all {
		for at.Sub(all[first]) >= d {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
