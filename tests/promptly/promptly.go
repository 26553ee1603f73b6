// Package promptly bounds the time that a fuzz target takes for one input.
package promptly

import (
	"fmt"
	"runtime/debug"
	"testing"
	"time"
)

// bound is far above what any input needs, so that a busy machine does not exceed it.
const bound = 30 * time.Second

// Do calls f. If f takes longer than 30 s, Do ends the test binary with a panic that shows where
// all goroutines are, since an endless loop cannot be stopped. f runs on the caller's goroutine: it
// may call t.FailNow, and its own panics are those of the test.
func Do(t testing.TB, f func()) { within(t, bound, f) }

func within(t testing.TB, bound time.Duration, f func()) {
	late := time.AfterFunc(bound, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("%s: takes longer than %v for one input", t.Name(), bound))
	})
	defer late.Stop()
	f()
}
