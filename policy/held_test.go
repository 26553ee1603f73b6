package policy_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
)

func TestFaultOf(t *testing.T) {
	one := policy.Single(policy.Policy{MessageRate: policy.PerSecond(1)})
	none, err := policy.NewSet(nil)
	assert.NoError(t, err)
	known := policy.Snapshot{Set: one, Identity: "a", Epoch: 5, Serial: 7, Revision: 70}
	for want, s := range map[policy.Fault]policy.Snapshot{
		"":                {Set: one, Identity: "a", Epoch: 6, Serial: 1, Revision: 1},
		policy.FaultOther: {Set: one, Identity: "b", Epoch: 6, Serial: 8, Revision: 71},
		policy.FaultOlder: {Set: none, Identity: "a", Epoch: 5, Serial: 6, Revision: 60},
		policy.FaultLost:  {Set: none, Identity: "a", Epoch: 5, Serial: 7, Revision: 71},
	} {
		err := s.Replaces(known)
		assert.Equal(t, want, policy.FaultOf(err), "%v", err)
		if err != nil {
			assert.Equal(t, want, policy.FaultOf(fmt.Errorf("read: %w", err)), "it may be wrapped")
		}
	}
	assert.Equal(t, policy.FaultUnavailable, policy.FaultOf(errors.New("no route to host")))
}

func TestCountPermanent(t *testing.T) {
	limit := policy.Policy{MessageRate: policy.PerSecond(1)}
	assert.Equal(t, 2, policy.CountPermanent([]policy.Entry{
		{Settings: limit}, {Settings: policy.Policy{}}, {Settings: limit, Temporary: true},
		{Settings: policy.Policy{}, Err: errors.New("it cannot be read")},
		{Settings: policy.HistorySettings{ReasonRequired: new(true)}},
	}), "an empty policy, a temporary one and the history's settings do not count")
}

// TestSnapshotWithoutHistory: a cache file has no settings of the history, which earlier versions
// do not know.
func TestSnapshotWithoutHistory(t *testing.T) {
	set, err := policy.NewSet([]policy.Entry{
		{Settings: policy.Policy{MessageRate: policy.PerSecond(1)}},
		{Settings: policy.HistorySettings{ReasonRequired: new(true)}},
	})
	require.NoError(t, err)
	text, err := policy.MarshalSnapshot(policy.Snapshot{Set: set})
	require.NoError(t, err)
	assert.Contains(t, string(text), "messageRate")
	assert.NotContains(t, string(text), "reasonRequired")
}
