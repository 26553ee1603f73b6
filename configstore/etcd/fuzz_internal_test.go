package etcd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// FuzzMarker: what is stored as a marker is one that Adopt writes, or none.
func FuzzMarker(f *testing.F) {
	f.Add([]byte(`{"id":"a","epoch":1700000000000,"count":3}`))
	f.Add([]byte(`{"id":"","epoch":-1,"count":1e99}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		promptly.Do(t, func() {
			m := parseMarker(text)
			if m == (configstore.Marker{}) {
				return
			}
			require.NotEmpty(t, m.ID)
			require.GreaterOrEqual(t, m.Count, 0)
			require.Positive(t, m.Epoch)
		})
	})
}

// FuzzEntry: what is stored under a key is an entry that can be resolved, or one that says why not.
func FuzzEntry(f *testing.F) {
	s := &Store{prefix: "/throttle"}
	f.Add("/throttle/policies/cluster", []byte(`{"schema":2,"messageRate":"5/s"}`))
	f.Add("/throttle/temporary/policies/cluster/paused", []byte(`{"expires":"2040-01-02T15:04:05Z","settings":{"schema":2,"paused":true}}`))
	f.Add("/throttle/quotas/tag:x", []byte(`{"schema":2,"total":"1MiB"}`))
	f.Add("/throttle/x/%zz", []byte(`null`))
	topic, err := policy.ParseScope("kafka://public/default/orders")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		promptly.Do(t, func() {
			e := s.entry(key, value, 3)
			set, _ := policy.NewSet([]policy.Entry{e})
			_ = set.Resolve("standalone", topic.Topic, "billing")
			if e.Err == nil {
				require.NoError(t, e.Settings.Validate(e.Scope))
			}
		})
	})
}
