package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// FuzzSnapshot: a cache file is refused, or holds policies that can be resolved and written again.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte(`{"schema":2,"identity":"a","epoch":1,"revision":7,"entries":[` +
		`{"section":"policies","scope":"cluster","settings":{"schema":2,"messageRate":"5/s"}},` +
		`{"section":"policies","scope":"a/b","settings":{"schema":2,"paused":true},"temporary":true,"field":"paused",` +
		`"expires":"2040-01-02T15:04:05Z"},{"section":"quotas","scope":"tag:x","settings":{"schema":2,"total":"1MiB"}}]}`))
	f.Add([]byte(`{"schema":2,"entries":[{"section":"policies","scope":"%","settings":{"schema":2},"error":"unreadable"}]}`))
	for _, section := range policy.Sections() {
		f.Add([]byte(`{"schema":2,"entries":[{"section":"` + section.String() + `","scope":"cluster","settings":{"schema":2,"x":1}}]}`))
	}
	topic, err := policy.ParseScope("kafka://public/default/orders")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text []byte) {
		promptly.Do(t, func() {
			s, err := policy.UnmarshalSnapshot(text)
			if err != nil {
				return
			}
			s = s.At(time.Unix(1.7e9, 0))
			_ = s.Set.Resolve("standalone", topic.Topic, "billing")
			again, err := policy.MarshalSnapshot(s)
			require.NoError(t, err)
			_, err = policy.UnmarshalSnapshot(again)
			require.NoError(t, err, "%s", again)
		})
	})
}
