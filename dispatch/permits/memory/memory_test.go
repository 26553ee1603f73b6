package memory_test

import (
	"testing"
	"testing/synctest"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits/memory"
	"github.com/dispatchthrottle/throttle/dispatch/permits/permitstest"
)

var _ dispatch.PermitStore = (*memory.Store)(nil)

func TestStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { permitstest.Check(t, memory.New()) })
}
