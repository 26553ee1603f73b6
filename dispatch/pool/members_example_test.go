package pool_test

import (
	"fmt"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
)

// Two replicas share 101 permits a second. Each keeps a Lease; the state lies in a permit store.
func ExampleMeet() {
	const ttl = 1.0
	var state pool.State
	replicas := []pool.Lease{{Replica: "a"}, {Replica: "b"}}
	now := 1000.0
	for range 50 {
		for i, l := range replicas {
			l = l.At(now)
			var a pool.Answer
			state, a = pool.Meet(state, l.Member(), l.Answer, ttl, now)
			replicas[i] = l.Renew(l.Member(), a, now, ttl)
		}
		now += ttl / 40
	}
	for period := range int64(2) {
		for _, l := range replicas {
			a := l.At(now).Answer
			fmt.Println(period, l.Replica, a.Agreed, pool.Share(101, a.Size, a.Rank, period))
		}
	}
	state = pool.Leave(state, replicas[1].Member(), ttl, now)
	fmt.Println(len(state.Members))
	// Output:
	// 0 a true 51
	// 0 b true 50
	// 1 a true 50
	// 1 b true 51
	// 1
}
