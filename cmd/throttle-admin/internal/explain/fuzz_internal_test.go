package explain

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// FuzzStatus: whatever replicas publish as their status, and a ratekeeper as rates, explain
// describes it.
func FuzzStatus(f *testing.F) {
	f.Add([]byte(`{"replica":"a","revision":7,"subscriptions":[{"topic":"kafka://public/default/orders",`+
		`"subscription":"billing","owner":"tag:x","waiting":3,"reason":"topic","limits":[{"key":"k","limit":"topic","rate":5,`+
		`"share":2,"use":1e300,"held":-1}]}]}`), []byte(`{"time":1,"rates":{"tag:x":{"rate":5}}}`), uint8(0))
	f.Add([]byte(`{"subscriptions":null}`), []byte(`%`), uint8(3))
	scope, err := policy.ParseScope("kafka://public/default/orders")
	require.NoError(f, err)
	tag, err := policy.ParseScope("tag:x")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, status, rates []byte, mode uint8) {
		promptly.Do(t, func() {
			store := memory.New()
			require.NoError(t, store.Publish(t.Context(), "c", "a", status, time.Minute))
			keep := func([]byte, float64) []byte { return rates }
			require.NoError(t, store.Update(t.Context(), permits.RatesKey("c"), time.Minute, keep))
			p := policy.Policy{MessageRate: policy.PerSecond(10)}
			p.Sharing.Mode = []policy.SharingMode{policy.Fair, policy.Strict, policy.Split, policy.Groups}[mode%4]
			s := configstore.Snapshot{Revision: 7, Entries: []policy.Entry{
				{Scope: scope, Settings: p}, {Scope: tag, Settings: policy.Quota{Total: new(int64(1 << 20))}},
			}}
			x := explainPolicy(s, "c", scope)
			x.addReasons(s, scope, x.addLive(t.Context(), &cli.App{Cluster: "c"}, store))
			var w strings.Builder
			x.table(&w, time.Unix(1.7e9, 0))
			_, err := json.Marshal(x)
			require.NoError(t, err)
		})
	})
}
