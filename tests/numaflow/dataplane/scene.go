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
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest/window"
)

// Build builds the command in a directory and returns the name of its binary.
func Build(t testing.TB, directory string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "vertex")
	out, err := exec.Command("go", "build", "-o", binary, directory).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// Env returns the environment of MonoVertex orders in namespace team, with a permit store and a
// policy with these fields in YAML's flow form.
func Env(t testing.TB, fields, permits string) []string {
	t.Helper()
	policies := filepath.Join(t.TempDir(), "policies.yaml")
	text := "schema: 2\npolicies:\n  - {scope: numaflow://team/orders/orders, " + fields + "}\n"
	require.NoError(t, os.WriteFile(policies, []byte(text), 0o600))
	return []string{
		throttle.EnvPolicies + "=file:" + policies, throttle.EnvPermits + "=" + permits,
		"NUMAFLOW_NAMESPACE=team", "NUMAFLOW_MONO_VERTEX_NAME=orders",
	}
}

// Window returns the highest number of messages that arrived in any interval d since from, at all
// vertices together.
func Window(d time.Duration, from time.Time, vertices ...*Vertex) int {
	var all []time.Time
	for _, v := range vertices {
		all = append(all, v.Arrivals()...)
	}
	all = slices.DeleteFunc(all, func(at time.Time) bool { return at.Before(from) })
	slices.SortFunc(all, time.Time.Compare)
	return window.Max(d, window.Times(all))
}

// Speed returns the messages per second that have arrived since from, at all vertices together. It
// measures each vertex from the start of its first pause to that of its last one: by then a Read
// has used the permits of the pause before.
func Speed(pause time.Duration, from time.Time, vertices ...*Vertex) (perSecond float64) {
	for _, v := range vertices {
		all := slices.DeleteFunc(v.Arrivals(), func(at time.Time) bool { return at.Before(from) })
		var pauses []int
		for i := 1; i < len(all); i++ {
			if all[i].Sub(all[i-1]) >= pause {
				pauses = append(pauses, i-1)
			}
		}
		first, last := 0, len(all)-1
		if len(pauses) > 1 {
			first, last = pauses[0], pauses[len(pauses)-1]
		}
		if last > first {
			perSecond += float64(last-first) / all[last].Sub(all[first]).Seconds()
		}
	}
	return perSecond
}
