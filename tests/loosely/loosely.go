// Package loosely repeats measurements whose lower bounds a busy machine may break.
package loosely

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

const tries = 5

// Hold calls measure until no assertion on loose fails, at most five times. The failures of the
// fifth call are reported to t. Assertions that must always hold are made on t: if one fails, the
// test fails and measure is not called again.
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
		t.Logf("measuring again, since%s", loose)
	}
}

type failures []string

func (f *failures) Errorf(format string, args ...any) {
	*f = append(*f, fmt.Sprintf(format, args...))
}
