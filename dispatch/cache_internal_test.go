package dispatch

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// FuzzCache: a cache file is refused, or holds what is written again so that it reads the same. The
// number of replicas, by which limits are divided, is 0 or more in any case.
func FuzzCache(f *testing.F) {
	f.Add([]byte(`{"schema":2,"identity":"a","epoch":1,"revision":7,"entries":[` +
		`{"section":"policies","scope":"cluster","settings":{"schema":2,"messageRate":"5/s"}}],` +
		`"replicas":12,"fell":"it was restored"}`))
	f.Add([]byte(`{"schema":2,"replicas":-3,"fell":5}`))
	f.Add([]byte(`{"replicas":1e99,"replicas":7}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		promptly.Do(t, func() {
			line, replicas, err := parseCache(text)
			require.GreaterOrEqual(t, replicas, int64(0))
			if err != nil {
				return
			}
			written, err := formatCache(line, replicas)
			require.NoError(t, err)
			again, replicasAgain, err := parseCache(written)
			require.NoError(t, err, "%s", written)
			assert.Equal(t, replicas, replicasAgain)
			assert.Equal(t, line.Fell, again.Fell)
			assert.Equal(t, line.Known.Revision, again.Known.Revision)
		})
	})
}
