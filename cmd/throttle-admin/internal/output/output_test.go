package output

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
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
