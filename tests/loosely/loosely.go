// Package loosely holds what a busy machine may break: that enough comes, and soon enough.
package loosely

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

const tries = 3

// Hold measures until nothing fails that is asserted of loose, three times at most; the failures of the third time are t's. What
// must never happen is asserted of t: it fails at once, and nothing is measured again.
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
		t.Logf("measured again, since%s", loose)
	}
}

type failures []string

func (f *failures) Errorf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }
