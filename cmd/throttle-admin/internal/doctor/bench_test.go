package doctor_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// BenchmarkDoctor looks at an etcd with 10,000 policies, and at a Redis with the status records of
// 1,000 replicas, each with a hundred subscriptions.
func BenchmarkDoctor(b *testing.B) {
	url, redis := services.EtcdURL(b), services.Redis(b)
	store, err := throttle.OpenPolicies(b.Context(), url)
	require.NoError(b, err)
	topic := func(i int) policy.Topic {
		return policy.Topic{Scheme: policy.Kafka, Tenant: "public", Namespace: "default", Name: fmt.Sprintf("t%05d", i)}
	}
	var all []configstore.Change
	for i := range 10_000 {
		all = append(all, configstore.Change{
			Key: configstore.Key{Scope: policy.TopicScope(topic(i))}, Settings: policy.Policy{MessageRate: policy.PerSecond(5)},
		})
	}
	_, err = store.Apply(b.Context(), configstore.Commit{Changes: all})
	require.NoError(b, err)
	snapshot, err := store.List(b.Context())
	require.NoError(b, err)
	require.NoError(b, store.Close())
	permits, err := throttle.OpenPermits(redis)
	require.NoError(b, err)
	for i := range 1000 {
		r := dispatch.Stats{
			Replica: fmt.Sprint("replica-", i), Version: dispatch.Version(), Identity: snapshot.Marker.ID,
			Revision: 1 << 60, Time: time.Now().Add(time.Hour).UnixMilli(),
		}
		for j := range 100 {
			r.Subscriptions = append(r.Subscriptions, dispatch.SubscriptionStats{
				Topic: topic((100*i + j) % 10_000).String(), Subscription: "billing", Backlog: 1000,
			})
		}
		text, err := json.Marshal(r)
		require.NoError(b, err)
		require.NoError(b, permits.Publish(b.Context(), "standalone", r.Replica, text, time.Hour))
	}
	require.NoError(b, permits.Close())
	b.Run("throttle", func(b *testing.B) {
		for b.Loop() {
			_, out, errs := clitest.Run(b.Context(), families, "doctor", "--policies", url, "--permits", redis)
			require.Contains(b, out, "10000 policies, 1000 replicas: ", errs)
		}
		b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s")
		b.ReportMetric(0, "ns/op")
	})
}
