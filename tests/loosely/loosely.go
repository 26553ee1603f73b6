// Package loosely repeats measurements that a busy machine may spoil: of enough messages, soon
// enough.
package loosely

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

const tries = 3

// Hold measures up to three times, until no assertion on loose fails; the failures of the third
// time are those of t. Bounds that must never be exceeded are asserted on t: t fails at once, and
// there is no further measurement.
func Hold(t testing.TB, measure func(loose assert.TestingT)) {
	t.Helper()
	for try := 1; ; try++ {
		var loose failures
		measure(&loose)
		if len(loose) == 0 {
			return
		}
		if try == tries || t.Failed() {
			for _, text := range loose {
				t.Error(text)
			}
			return
		}
		t.Logf("measuring again: %s", loose)
	}
}

type failures []string

func (f *failures) Errorf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }
