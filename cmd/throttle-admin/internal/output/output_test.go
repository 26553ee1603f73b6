package output

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTablesFit(t *testing.T) {
	long := strings.Repeat("long-name-", 30)
	for _, rows := range [][][]string{
		{{"a", "b", "c"}},
		{{long, "some words that go on and on " + long, "3"}},
		{{long, long, long}, {"", "", ""}},
	} {
		var out strings.Builder
		Table(&out, []string{"ONE", "TWO", "THREE"}, rows)
		for line := range strings.Lines(out.String()) {
			assert.LessOrEqual(t, len(line), MaxWidth+1, line)
		}
		for _, cell := range rows[0] {
			assert.Contains(t, strings.Join(strings.Fields(out.String()), ""), cell[:1])
		}
	}
}

// TestTablesBreakAtSpaces: a word is broken only if its column cannot hold it.
func TestTablesBreakAtSpaces(t *testing.T) {
	var out strings.Builder
	Table(&out, []string{"FIELD", "VALUE", "FROM"}, [][]string{
		{"byteRate", "not throttled", strings.Repeat("x", 80)},
	})
	assert.Equal(t, "FIELD     VALUE      FROM\n"+
		"byteRate  not        "+strings.Repeat("x", 79)+"\n"+
		"          throttled  x\n", out.String())
}

// TestExactAndPrintable: JSON and YAML have exactly the values that were printed, and no terminal
// acts on what they contain.
func TestExactAndPrintable(t *testing.T) {
	want := map[string]string{"plain": "a\u202eb", "a\u202eb": "\u009b31m\x1b[2J\U000e0001\u2028 \x7f\x00\ufeff\u00a0 \U0001f600 \"'\\u \r\n\té漢"}
	for format, parse := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": yaml.Unmarshal} {
		var out bytes.Buffer
		require.NoError(t, Print(&out, format, want, nil))
		for _, r := range out.String() {
			assert.True(t, r == '\n' || strconv.IsPrint(r), "%s: %q in %q", format, r, out.String())
		}
		got := map[string]string{}
		require.NoError(t, parse(out.Bytes(), &got), out.String())
		assert.Equal(t, want, got, format)
	}
}
