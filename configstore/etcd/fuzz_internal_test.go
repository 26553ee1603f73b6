package etcd

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

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
	for _, section := range policy.Sections() {
		f.Add("/throttle/"+section.String()+"/cluster", []byte(`{"schema":2,"x":1}`))
	}
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

// FuzzHistory: a head is damaged, or one from which Apply can go on; a record is refused, or
// written so that it reads the same, however its key is named.
func FuzzHistory(f *testing.F) {
	s := &Store{prefix: "/throttle/config", history: "/throttle/history"}
	long := configstore.Record{Time: time.Unix(1.7e9, 0).UTC(), By: configstore.By{Reason: strings.Repeat("r", packedFrom)}}
	packed, err := marshalRecord(long)
	require.NoError(f, err)
	f.Add([]byte(`{"serial":3,"seen":70,"count":2,"bytes":900}`), "000000000003-1700000000000-900", []byte(packed))
	f.Add([]byte(`{"serial":-3}`), "%d--", []byte(`{"time":"2026-11-28T12:00:00Z","changes":[{"scope":"cluster"}]}`))
	f.Add([]byte(`{"serial":999999999999,"seen":1}`), "999999999999-1-1", []byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, text []byte, name string, value []byte) {
		promptly.Do(t, func() {
			key := s.history + changesPart + name
			e := s.parseEnds([]*mvccpb.KeyValue{{Value: text, ModRevision: 9}}, []*mvccpb.KeyValue{{Key: []byte(key)}})
			if e.headErr == nil {
				now := time.Unix(1.8e9, 0)
				e.forgets(s.nameOf(e.oldest[0]), now)
				require.Less(t, s.recordKey(e.Serial), s.recordKey(e.Serial+1), "records are read in their order")
				require.Greater(t, e.Bytes+maxBytes, e.Bytes)
				require.GreaterOrEqual(t, e.Seen*steps, e.Seen)
			}
			r, err := unmarshalRecord(value)
			if err != nil {
				return
			}
			written, err := marshalRecord(r)
			require.NoError(t, err)
			again, err := unmarshalRecord([]byte(written))
			require.NoError(t, err)
			assert.Equal(t, r, again)
		})
	})
}
