package history_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/history"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// BenchmarkHistory lists 10,000 changes of an etcd.
func BenchmarkHistory(b *testing.B) {
	const changes = 10_000
	url := services.EtcdURL(b)
	store, err := throttle.OpenPolicies(b.Context(), url)
	require.NoError(b, err)
	for i := range int64(changes) {
		_, err := store.Apply(b.Context(), configstore.Commit{
			By: configstore.By{Author: "ann@laptop", Reason: "a load test"},
			Changes: []configstore.Change{{
				Key:      configstore.Key{Scope: policy.NamespaceScope("public", "", "default")},
				Settings: policy.Policy{MessageRate: policy.PerSecond(1 + i)},
			}},
		})
		require.NoError(b, err)
	}
	require.NoError(b, store.Close())
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			status, out, errs := clitest.Run(b.Context(), []cli.Family{history.Commands},
				"history", "--limit", fmt.Sprint(changes), "--policies", url)
			require.Zero(b, status, errs)
			require.GreaterOrEqual(b, strings.Count(out, "\n"), changes)
		}
		b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s")
		b.ReportMetric(0, "ns/op")
	})
}
