package tables

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "doc.md")
	before, after := "a\n"+begin("bench"), end+begin("other")+"z\n"
	require.NoError(t, os.WriteFile(file, []byte(before+"old\n"+after), 0o600))
	require.NoError(t, Write(file, "bench", []byte("new\n")))
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, before+"new\n"+after, string(got))
	require.ErrorContains(t, Write(file, "none", nil), `no line "<!-- make none writes from here -->"`)
	require.ErrorContains(t, Write(file, "other", nil), `no line "<!-- to here -->" after it`)
}
