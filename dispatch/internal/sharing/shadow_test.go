package sharing

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPass: messages in shadow mode take the permits that are there, and those without a permit are
// counted. Unpass adds no permit. It lowers the count of the next messages.
func TestPass(t *testing.T) {
	b := newBucket(10)
	b.supply(5)
	assert.True(t, b.Pass(3))
	assert.False(t, b.Pass(6))
	assert.EqualValues(t, 4, b.shadow.messages.Load())
	assert.EqualValues(t, 4, b.shadow.used())
	assert.Zero(t, b.avail.Load())
	b.Unpass(6)
	assert.Zero(t, b.avail.Load(), "nobody has allocated them")
	assert.EqualValues(t, -2, b.shadow.used())
	assert.True(t, b.Pass(5))
	assert.False(t, b.Pass(5))
	assert.EqualValues(t, 8, b.shadow.messages.Load())
	assert.EqualValues(t, 8, b.shadow.used())

	b.supply(1)
	assert.True(t, b.PassBytes(1, 100), "one byte is there")
	assert.EqualValues(t, 99, b.Debt(), "as if the limit were enforced")
	assert.False(t, b.PassBytes(2, 100))
	assert.EqualValues(t, 99, b.Debt(), "but no more than that")
	assert.EqualValues(t, 10, b.shadow.messages.Load())
	b.Unpass(100)
	assert.True(t, b.PassBytes(1, 60))
	assert.False(t, b.PassBytes(1, 60))
	assert.EqualValues(t, 11, b.shadow.messages.Load())
}
