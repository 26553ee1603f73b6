package pool_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch/pool"
)

// TestLease: an answer counts for half a TTL from when its heartbeat was sent. One to another name,
// or older than what is applied, changes nothing. A lease that has ended has a new name.
func TestLease(t *testing.T) {
	answer := func(size int, term int64) pool.Answer { return pool.Answer{Size: size, Rank: 1, Term: term} }
	l := pool.Lease{Replica: "r"}
	assert.Equal(t, "r#0", l.Member())
	assert.Equal(t, l, l.At(100), "it holds nothing, which does not end")
	l = l.Renew("r#0", answer(3, 5), 10, 4)
	assert.Equal(t, pool.Lease{Replica: "r", Answer: answer(3, 5), Until: 12}, l)
	assert.Equal(t, l, l.Renew("r#0", answer(2, 4), 11, 4), "an older answer")
	assert.Equal(t, l, l.Renew("r#1", answer(2, 6), 11, 4), "another name")
	renewed := l.Renew("r#0", answer(2, 5), 11, 4)
	assert.Equal(t, pool.Lease{Replica: "r", Answer: answer(2, 5), Until: 13}, renewed)
	assert.Equal(t, 13.0, renewed.Renew("r#0", answer(2, 5), 9, 4).Until, "sent before the last one")
	assert.Equal(t, l, l.At(11.99))
	assert.Equal(t, pool.Lease{Replica: "r", Stay: 1}, l.At(12))
	assert.Equal(t, pool.Lease{Replica: "r", Stay: 1}, l.Left())
	assert.Equal(t, "r#1", l.Left().Member())
}
