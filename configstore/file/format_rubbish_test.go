package file_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/configstore/file"
)

// TestRubbishIsRefusedFast parses a megabyte of each pattern, and less with the race detector.
func TestRubbishIsRefusedFast(t *testing.T) {
	size := 1 << 20
	if testing.Short() {
		size = 1 << 16
	}
	for _, bit := range []string{
		"[", "{", "- ", "a: ", "? ", "a", "\x00", "\n- x", "\"", "'", "|\n", "&a ", "*a ", "!!x ", "#", "[{", "[]",
		"  \n", "- [\n", "[a: ", "it's [", "a:\n", "[[],",
	} {
		start := time.Now()
		_, err := file.Parse("rubbish", []byte(strings.Repeat(bit, size/len(bit))))
		require.Error(t, err, "%q", bit)
		assert.Less(t, time.Since(start), 30*time.Second, "%q", bit)
		t.Logf("%q: %v", bit, time.Since(start))
		assert.Less(t, len(err.Error()), 1<<20, "%q", bit)
	}
}

// TestPairsWithinPairsNest: pairs in brackets nest, too, where a comma separates them.
func TestPairsWithinPairsNest(t *testing.T) {
	_, err := file.Parse("p", []byte("["+strings.Repeat("a: ", 1<<18)))
	assert.ErrorContains(t, err, "p:1: nested")
}

// TestBracketsInTextAreText: brackets and dashes within text do not nest.
func TestBracketsInTextAreText(t *testing.T) {
	many := strings.Repeat("- ", 60) + strings.Repeat("[{", 60)
	var line strings.Builder
	for i := range 60 {
		fmt.Fprintf(&line, `{"scope": "a/b%d", "burst": 1, "paused": false}, `, i)
	}
	for _, text := range []string{
		"schema: 2 # " + many + "\npolicies: []\n",
		"# it's " + many + "\nschema: 2\npolicies: []\n",
		"schema: 2\npolicies:\n- scope: \"pattern:" + strings.Repeat("[a]", 60) +
			strings.Repeat(`\\[`, 60) + "\"\n  burst: 1\n",
		"schema: 2\npolicies:\n- scope: kafka://a/b/c\n  subscription: '" + many + "'\n  burst: 1\n",
		`{"schema": 2, "policies": [` + strings.TrimSuffix(line.String(), ", ") + "]}",
		"\uFEFFschema: 2\npolicies: []\n",
		"\uFEFF" + `{"schema":2,"policies":[]}`,
	} {
		_, err := file.Parse("p", []byte(text))
		assert.NoError(t, err, "%.100s", text)
	}
}
