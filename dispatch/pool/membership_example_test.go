package pool_test

import (
	"fmt"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
)

// Two replicas share a limit. Each keeps a Lease; the state lies in a permit store.
func ExampleHeartbeat() {
	const ttl = 1.0
	var state pool.State
	replicas := []pool.Lease{{Replica: "a"}, {Replica: "b"}}
	now := 1000.0
	for range 50 {
		for i, l := range replicas {
			l = l.At(now)
			var a pool.Answer
			state, a = pool.Heartbeat(state, l.Member(), l.Answer, ttl, now)
			replicas[i] = l.Renew(l.Member(), a, now, ttl)
		}
		now += ttl / 40
	}
	for _, l := range replicas {
		a := l.At(now).Answer
		fmt.Println(l.Replica, a.Agreed, a.Rank, "of", a.Size)
	}
	state = pool.Leave(state, replicas[1].Member(), ttl, now)
	fmt.Println(len(state.Members))
	// Output:
	// a true 0 of 2
	// b true 1 of 2
	// 1
}
