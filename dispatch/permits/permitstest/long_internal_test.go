package permitstest

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLongTests: make test-long runs the tests that do more with THROTTLE_LONG, and no others, also
// none of the same name.
func TestLongTests(t *testing.T) {
	const root = "../../.."
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(text), "\nLONGER := ")
	list, _, _ = strings.Cut(list, "\n\n")
	listed := strings.Split(regexp.MustCompile(`[$\\\\\s]`).ReplaceAllString(list, ""), "|")

	test := regexp.MustCompile(`(?m)^func Test(\w+)`)
	long := regexp.MustCompile(`permitstest\.(Long\(\)|Seeds\(t, (permitstest\.Quarter\(\d+\)|\d+), \d+\))|\blong\(t\)|Getenv\("THROTTLE_LONG"\)`)
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && entry.Name() == ".cache" {
			return cmp.Or(err, fs.SkipDir)
		}
		if !strings.HasSuffix(name, "_test.go") || entry.IsDir() {
			return nil
		}
		text, err := os.ReadFile(name)
		for f := range strings.SplitSeq(string(text), "\n}\n") {
			is := test.FindStringSubmatch(f)
			if is == nil {
				continue
			}
			if more := long.MatchString(f); !more {
				assert.NotContains(t, listed, is[1], name)
			} else if !slices.Contains(found, is[1]) {
				found = append(found, is[1])
			}
		}
		return err
	}))
	slices.Sort(found)
	assert.Equal(t, listed, found, "LONGER in the Makefile")
}
