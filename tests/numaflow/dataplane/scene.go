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
	"github.com/dispatchthrottle/throttle/tests/window"
)

// Build builds the command of a folder, and returns the path of its binary.
func Build(t testing.TB, directory string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "vertex")
	out, err := exec.Command("go", "build", "-o", binary, directory).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// Env returns the environment of the MonoVertex orders in the namespace team, with a policy, whose
// fields are in YAML's flow form, and a permit store.
func Env(t testing.TB, fields, permits string) []string {
	t.Helper()
	policies := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(policies, []byte("schema: 1\npolicies:\n  - {scope: numaflow://team/orders/orders, "+fields+"}\n"), 0o600))
	return []string{
		throttle.EnvPolicies + "=file:" + policies, throttle.EnvPermits + "=" + permits,
		"NUMAFLOW_NAMESPACE=team", "NUMAFLOW_MONO_VERTEX_NAME=orders",
	}
}

// Window returns the most messages that arrived at all vertices in any interval of length d from a
// time on.
func Window(d time.Duration, from time.Time, vertices ...*Vertex) int {
	var all []time.Time
	for _, v := range vertices {
		all = append(all, v.Arrivals()...)
	}
	all = slices.DeleteFunc(all, func(at time.Time) bool { return at.Before(from) })
	slices.SortFunc(all, time.Time.Compare)
	return window.Max(d, window.Times(all))
}

// Speed returns the messages a second that have arrived since from, at all vertices together. Each
// vertex is measured between its first and its last pause, since batches arrive at once.
func Speed(pause time.Duration, from time.Time, vertices ...*Vertex) (perSecond float64) {
	for _, v := range vertices {
		all := slices.DeleteFunc(v.Arrivals(), func(at time.Time) bool { return at.Before(from) })
		var ends []int // of pauses
		for i := 1; i < len(all); i++ {
			if all[i].Sub(all[i-1]) >= pause {
				ends = append(ends, i)
			}
		}
		first, last := 0, len(all)-1
		if len(ends) > 1 {
			first, last = ends[0], ends[len(ends)-1]
		}
		if last > first {
			perSecond += float64(last-first) / all[last].Sub(all[first]).Seconds()
		}
	}
	return perSecond
}
