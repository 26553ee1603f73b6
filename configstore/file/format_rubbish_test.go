package file_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore/file"
)

// TestRubbishIsRefusedFast: a megabyte of anything.
func TestRubbishIsRefusedFast(t *testing.T) {
	for _, bit := range []string{"[", "{", "- ", "a: ", "? ", "a", "\x00", "\n- x", "\"", "'", "|\n", "&a ", "*a ", "!!x ", "#", "[{", "[]", "  \n", "- [\n"} {
		start := time.Now()
		_, err := file.Parse("rubbish", []byte(strings.Repeat(bit, (1<<20)/len(bit))))
		require.Error(t, err, "%q", bit)
		assert.Less(t, time.Since(start), 10*time.Second, "%q", bit)
		t.Logf("%q: %v", bit, time.Since(start))
		assert.Less(t, len(err.Error()), 1<<20, "%q", bit)
	}
}
