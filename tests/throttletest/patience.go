package throttletest

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what must happen. It is reached only in failure, however
// busy the machine is.
const Patience = 2 * time.Minute

// Until asks again and again whether something has happened, and fails the test if it has not when
// Patience ends. Unlike the conditions of require.Eventually, happened runs in the test's
// goroutine: it may fail the test.
func Until(t testing.TB, what string, happened func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !happened(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: not yet: %s", Patience, what)
		}
	}
}
