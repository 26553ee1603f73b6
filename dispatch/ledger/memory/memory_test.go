package memory_test

import (
	"testing"
	"testing/synctest"

	"github.com/dispatchthrottle/throttle/dispatch/ledger/memory"
	"github.com/dispatchthrottle/throttle/dispatch/ledgertest"
)

func TestSlowsDownAndKeepsValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := memory.New()
		ledgertest.KeepsValues(t, ledger)
		ledgertest.SlowsDown(t, ledger)
	})
}
