package configstore_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// TestMarkerEpoch: Adopt heals a marker whose epoch is over a day ahead, and keeps its id.
func TestMarkerEpoch(t *testing.T) {
	now := time.UnixMilli(1.7e12)
	const day = 86_400_000
	for had, want := range map[int64]int64{
		0: 1.7e12, 1.6e12: 1.7e12, 1.7e12: 1.7e12 + 1, 1.7e12 + day: 1.7e12 + day + 1,
		1.7e12 + day + 1: 1.7e12, 1e18: 1.7e12, math.MaxInt64: 1.7e12,
	} {
		m := configstore.Marker{ID: "a", Epoch: had, Serial: 3}
		assert.Equal(t, had > 1.7e12+day, m.Check(nil, now) != nil, "%d", had)
		m, err := m.Adopted(configstore.Adoption{}, nil, now)
		require.NoError(t, err)
		assert.Equal(t, configstore.Marker{ID: "a", Epoch: want, Serial: 4}, m, "%d", had)
	}
	m, err := configstore.Marker{Epoch: 1.6e12}.Adopted(configstore.Adoption{After: 1.7e12 + day}, nil, now)
	require.NoError(t, err)
	assert.Equal(t, int64(1.7e12+day+1), m.Epoch, "replicas have followed a clock that was ahead")
	_, err = m.Adopted(configstore.Adoption{After: 1.7e12 + day + 1}, nil, now)
	assert.ErrorContains(t, err, "is over a day ahead of this machine's clock")
}

// TestMarkerCount: an entry without settings limits nothing, so that a store of such entries has
// lost its policies.
func TestMarkerCount(t *testing.T) {
	entry := policy.Entry{Settings: policy.Policy{MessageRate: policy.PerSecond(7)}}
	now := time.Now()
	m, err := configstore.Marker{}.Adopted(configstore.Adoption{}, []policy.Entry{entry}, now)
	require.NoError(t, err)
	assert.NoError(t, m.Check([]policy.Entry{entry}, now))
	entry.Settings = policy.Policy{}
	assert.ErrorContains(t, m.Check([]policy.Entry{entry}, now), "has lost its policies (1)")
	entry.Err = assert.AnError
	assert.NoError(t, m.Check([]policy.Entry{entry}, now), "it keeps its last valid settings")
}
