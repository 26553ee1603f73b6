package file

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadsLater: an editor may truncate a file and then write it. The file is read 10 ms after the
// first event, so that an editor that is quick causes no error.
func TestReadsLater(t *testing.T) {
	name := filepath.Join(t.TempDir(), "p.yaml")
	require.NoError(t, os.WriteFile(name, []byte("policies: []"), 0o600))
	n := newNotifier(name)
	defer n.close()
	n.arm()
	truncated := time.Now()
	require.NoError(t, os.Truncate(name, 0))
	n.wait(t.Context(), nil, 24*time.Hour)
	assert.GreaterOrEqual(t, time.Since(truncated), 10*time.Millisecond)
}
