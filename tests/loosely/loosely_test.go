package loosely_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/tests/loosely"
)

// recorder counts errors instead of failing.
type recorder struct {
	testing.TB
	errors int
}

func (r *recorder) Errorf(string, ...any) { r.errors++ }
func (r *recorder) Error(...any)          { r.errors++ }
func (r *recorder) Failed() bool          { return r.errors > 0 }

func TestHold(t *testing.T) {
	for name, c := range map[string]struct {
		strict, loose int // number of calls that fail
		tries, errors int // wanted
	}{
		"well":                    {0, 0, 1, 0},
		"too little once":         {0, 1, 2, 0},
		"too little twice":        {0, 2, 3, 0},
		"too little five times":   {0, 5, 5, 1},
		"too much":                {1, 0, 1, 1},
		"too much and too little": {1, 3, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r, tries := &recorder{TB: t}, 0
			loosely.Hold(r, func(loose assert.TestingT) {
				tries++
				assert.Greater(r, tries, c.strict)
				assert.Greater(loose, tries, c.loose)
			})
			assert.Equal(t, c.tries, tries)
			assert.Equal(t, c.errors, r.errors)
		})
	}
}
