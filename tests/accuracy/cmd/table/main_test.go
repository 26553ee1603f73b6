package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTable: the table has all results, and those that are out of their bounds are marked and fail.
func TestTable(t *testing.T) {
	results, document := filepath.Join(t.TempDir(), "results"), filepath.Join(t.TempDir(), "doc.md")
	require.NoError(t, os.WriteFile(results, []byte(
		`{"Package":"b","Test":"TestAccuracyRate","Figure":"of the limit","Measured":0.996,"Min":0.99,"Max":1.01,"Tries":1}`+"\n"+
			`{"Package":"a","Test":"TestAccuracyStop/kill","Figure":"ms","Measured":1234.5,"Max":100,"Tries":3}`+"\n"), 0o600))
	require.NoError(t, os.WriteFile(document, []byte("<!-- make accuracy writes from here -->\n<!-- to here -->\n"), 0o600))
	var out strings.Builder
	require.EqualError(t, run(results, document, &out), "1 of 2 figures are out of their bounds")
	assert.Equal(t, ""+
		"TEST         FIGURE        MEASURED  BOUND         TRIES  \n"+
		"a Stop/kill  ms            1234      at most 100   3      out of bounds\n"+
		"b Rate       of the limit  0.996     0.99 to 1.01  1      \n", out.String())
	got, err := os.ReadFile(document)
	require.NoError(t, err)
	assert.Equal(t, `<!-- make accuracy writes from here -->
| test | figure | measured | bound | tries |
| --- | --- | --- | --- | --- |
| a Stop/kill | ms | **1234** | at most 100 | 3 |
| b Rate | of the limit | 0.996 | 0.99 to 1.01 | 1 |
<!-- to here -->
`, string(got))
}

// TestNothingMeasured: a run that measured nothing fails, and leaves the table as it is.
func TestNothingMeasured(t *testing.T) {
	results, document := filepath.Join(t.TempDir(), "results"), filepath.Join(t.TempDir(), "doc.md")
	require.ErrorIs(t, run(results, document, &strings.Builder{}), os.ErrNotExist)
	require.NoError(t, os.WriteFile(results, nil, 0o600))
	require.EqualError(t, run(results, document, &strings.Builder{}), "nothing was measured")
	assert.NoFileExists(t, document)
}
