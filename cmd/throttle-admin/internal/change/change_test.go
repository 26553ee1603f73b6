package change

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// manyPolicies returns policies for n topics.
func manyPolicies(n int) (entries []policy.Entry) {
	for i := range n {
		topic := policy.Topic{
			Scheme: policy.Kafka, Tenant: "public", Namespace: "default",
			Name: fmt.Sprintf("t%05d", i),
		}
		entries = append(entries, policy.Entry{
			Scope:    policy.TopicScope(topic),
			Settings: policy.Policy{MessageRate: policy.PerSecond(1)},
		})
	}
	return entries
}

func TestNeededOfMany(t *testing.T) {
	entries := manyPolicies(16_000)
	var changes []configstore.Change
	for _, e := range entries {
		changes = append(changes, configstore.Change{Key: configstore.KeyOf(e), Settings: e.Policy()})
	}
	stored := configstore.Snapshot{Entries: entries[:10_000]}
	assert.Len(t, needed(stored, changes), 6000, "10,000 are stored already")
}
