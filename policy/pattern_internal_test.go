package policy

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCompiledOnce: while a set uses a pattern, the next set uses it too; then it is forgotten.
func TestCompiledOnce(t *testing.T) {
	const text = "^kafka://public/default/compiled-once"
	entries := []Entry{{Scope: PatternScope(text)}}
	set, err := NewSet(entries)
	require.NoError(t, err)
	next, err := NewSet(entries)
	require.NoError(t, err)
	assert.Same(t, set.patterns[0].pattern, next.patterns[0].pattern)
	runtime.KeepAlive(set) // from here on, nothing uses the pattern
	require.Eventually(t, func() bool {
		runtime.GC()
		_, known := compiled.Load(text)
		return !known
	}, 2*time.Minute, time.Millisecond)
}
