package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// manyPolicies returns policies for n topics.
func manyPolicies(t *testing.T, n int) (entries []policy.Entry) {
	t.Helper()
	for i := range n {
		topic := mustTopic(t, fmt.Sprintf("kafka://public/default/t%05d", i))
		entries = append(entries, policy.Entry{Scope: policy.TopicScope(topic), Policy: policy.Policy{MessageRate: policy.PerSecond(1)}})
	}
	return entries
}

func TestNeededOfMany(t *testing.T) {
	entries := manyPolicies(t, 16_000)
	var changes []configstore.Change
	for _, e := range entries {
		changes = append(changes, configstore.Change{Key: configstore.KeyOf(e), Policy: e.Policy})
	}
	loosely.Hold(t, func(loose assert.TestingT) {
		start := time.Now()
		assert.Len(t, needed(configstore.Snapshot{Entries: entries[:10_000]}, changes), 6000, "the others are there already")
		assert.Less(loose, time.Since(start), time.Second, "storeTimeout is for the store")
	})
}

func TestMoreThanEtcdTakes(t *testing.T) {
	if testing.Short() {
		t.Skip("19,000 policies take nearly storeTimeout with the race detector")
	}
	store := "etcd://" + services.Etcd(t).Endpoint + "/" + services.Name(t)
	for _, c := range []struct {
		n                  int
		subscription, want string
	}{
		{19_000, "", "etcdserver: request is too large"},
		{3000, strings.Repeat("ä", 100), "trying to send message larger than max"}, // escaped twice, each makes ten bytes
	} {
		policies := make([]string, c.n)
		for i := range policies {
			policies[i] = fmt.Sprintf(`{"scope":"kafka://a/b/t%d","messageRate":1}`, i)
			if c.subscription != "" {
				policies[i] = fmt.Sprintf(`{"scope":"kafka://a/b/t","subscription":"%s%d","messageRate":1}`, c.subscription, i)
			}
		}
		file := filepath.Join(t.TempDir(), "many.json")
		require.NoError(t, writeFile(file, `{"schema":1,"policies":[`+strings.Join(policies, ",")+"]}"))
		status, out, errs := demoRun(t.Context(), "apply", "-f", file, "--policies", store)
		assert.Equal(t, exitFailed, status)
		assert.Empty(t, out)
		assert.Contains(t, errs, c.want)
		assert.Contains(t, errs, "\nhint: etcd takes only so much at once: change fewer policies at a time\n")
	}
}
