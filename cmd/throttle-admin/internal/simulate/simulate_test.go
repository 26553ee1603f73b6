package simulate

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
)

// TestPlots: the pictures in docs are what the commands beside them draw.
func TestPlots(t *testing.T) {
	t.Chdir("../../../..")
	var text []byte
	for _, name := range []string{"docs/slowing-down.md", "docs/sharing.md"} {
		page, err := os.ReadFile(name)
		require.NoError(t, err)
		text = append(text, page...)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		command, ok := strings.CutPrefix(line, "    throttle-admin ")
		command, _, _ = strings.Cut(command, "#")
		args := strings.Fields(command)
		if !ok || len(args) < 2 || args[len(args)-2] != "--plot" {
			continue
		}
		n++
		name := args[len(args)-1]
		args[len(args)-1] = filepath.Join(t.TempDir(), name)
		status, _, errs := clitest.Run(t.Context(), []cli.Family{Commands}, args...)
		require.Equal(t, cli.ExitDone, status, errs)
		want, err := os.ReadFile(filepath.Join("docs", name))
		require.NoError(t, err)
		got, err := os.ReadFile(args[len(args)-1])
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want, got), "%s is not what its command draws", name)
	}
	assert.Equal(t, 3, n)
}

// TestPlotReplacesFilesOnly: a picture replaces one that is there, and is written through a link.
func TestPlotReplacesFilesOnly(t *testing.T) {
	file, link := filepath.Join(t.TempDir(), "plot.svg"), filepath.Join(t.TempDir(), "link.svg")
	require.NoError(t, os.Symlink(file, link))
	for _, name := range []string{file, link} {
		for _, text := range []string{"the first, which is longer", "the second"} {
			require.NoError(t, writePlot(name, func() []byte { return []byte(text) }))
			got, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, text, string(got))
		}
	}
	target, err := os.Readlink(link)
	require.NoError(t, err)
	assert.Equal(t, file, target)
}
