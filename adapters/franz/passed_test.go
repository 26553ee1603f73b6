package franzthrottle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestPassed: the most that was passed on in the window of now and the one before it.
func TestPassed(t *testing.T) {
	var p passed
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	assert.Zero(t, p.recent(at(0)))
	p.add(10, at(0))
	p.add(5, at(249))
	assert.Equal(t, 15, p.recent(at(249)))
	p.add(2, at(250))
	assert.Equal(t, 15, p.recent(at(499)))
	assert.Equal(t, 2, p.recent(at(500)))
	p.add(30, at(740))
	assert.Equal(t, 30, p.recent(at(999)))
	assert.Zero(t, p.recent(at(1250)))
}
