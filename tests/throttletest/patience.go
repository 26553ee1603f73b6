package throttletest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, and exits with status 1 if find still reports goroutines when
// Patience ends. It asks after a failure, too: the test may pass when it is repeated, alone, and
// leave nothing behind.
func Main(m interface{ Run() int }, find func(...goleak.Option) error) { os.Exit(run(m, find)) }

func run(m interface{ Run() int }, find func(...goleak.Option) error) (status int) {
	status = m.Run()
	if err := left(find); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

// VerifyNone fails the test if goroutines are left when Patience ends.
func VerifyNone(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := left(goleak.Find, options...); err != nil {
		t.Error(err)
	}
}

// left asks find until it reports nothing or Patience ends, and returns its last answer.
func left(find func(...goleak.Option) error, options ...goleak.Option) error {
	err := find(options...)
	for end := time.Now().Add(Patience); err != nil && time.Now().Before(end); err = find(options...) {
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

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
