package redispermits

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestBoundedReplies: replies are followed however they are cut into reads, and one that is out of
// bounds is an error before go-redis makes room for it.
func TestBoundedReplies(t *testing.T) {
	const sound = "+OK\r\n$5\r\n$9\r\n\n\r\n*2\r\n:1\r\n*-1\r\n$-1\r\n%1\r\n+a\r\n*1\r\n_\r\n|1\r\n+k\r\n+v\r\n,1\r\n>1\r\n+x\r\n"
	for size := 1; size < 20; size++ {
		var r replies
		text := strings.Repeat(sound, 3)
		for len(text) > 0 {
			n := min(size, len(text))
			assert.NoError(t, r.read([]byte(text[:n])))
			text = text[n:]
		}
		assert.Zero(t, r.skip+r.due+r.length, "all replies have ended")
	}
	for _, bad := range []string{
		"$99999999999999999999\r\n", "$67108865\r\n", "*1048577\r\n", "*2\r\n%9223372036854775807\r\n", "$x\r\n", "*\r\n",
		strings.Repeat("*1\r\n", maxValues+1), "*2\r\n" + strings.Repeat("*1000\r\n", 1100), "-" + strings.Repeat("e", maxLine),
	} {
		var r replies
		assert.ErrorContains(t, r.read([]byte(bad)), "invalid reply", bad[:min(30, len(bad))])
	}
}
