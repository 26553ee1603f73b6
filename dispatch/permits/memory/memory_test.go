package memory_test

import (
	"testing"
	"testing/synctest"

	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
)

func TestSlowsDownAndKeepsValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := memory.New()
		permitstest.KeepsValues(t, permits)
		permitstest.SlowsDown(t, permits)
	})
}
