package console

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestPace: what takes long is found out rarely, and what has taken long once is not.
func TestPace(t *testing.T) {
	const s = time.Second
	var p pace
	for i, c := range []struct {
		took     time.Duration
		together int
		want     time.Duration
	}{
		{4 * s, 3, s}, {s / 100, 3, s}, // the first one waited for a store
		{3 * s, 3, s}, {2 * s, 3, 120 * s}, {3 * s, 1, 40 * s}, {s / 100, 1, s},
	} {
		assert.Equal(t, c.want, p.next(s, c.took, c.together), "%d", i)
	}
}
