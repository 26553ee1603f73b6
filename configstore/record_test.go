package configstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// FuzzRecord: whatever a history holds, it is refused or read, and what was read is written so that
// it reads the same.
func FuzzRecord(f *testing.F) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 5, time.UTC)
	for _, r := range []configstore.Record{
		{Time: at},
		{
			Revision: 5, Time: at, By: configstore.By{Author: "ann\x1b[2J", Reason: "a\u202eb"}, First: true,
			Changes: []configstore.Changed{
				{Key: configstore.Key{Scope: policy.PatternScope("a.*")}, Was: configstore.Value{Unknown: true}},
				{
					Key: configstore.Key{Section: policy.QuotaSection, Scope: policy.TagScope("a"), Field: "total"},
					Is:  configstore.Value{Settings: policy.Quota{Total: new(int64(5))}, Expires: at},
				},
				{Key: configstore.Key{Scope: policy.Scope{Kind: policy.UnreadableKind, Pattern: "x"}}},
			},
		},
	} {
		data, err := configstore.MarshalRecord(r)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"time":"2026-11-28T12:00:00Z","changes":[{"scope":"cluster","was":{},"is":{"settings":{"schema":3}}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := configstore.UnmarshalRecord(data)
		if err != nil {
			return
		}
		written, err := configstore.MarshalRecord(r)
		require.NoError(t, err)
		again, err := configstore.UnmarshalRecord(written)
		require.NoError(t, err)
		assert.Equal(t, r, again)
	})
}
