package throttletest

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

type tests int // the status that they exit with

func (status tests) Run() int { return int(status) }

func TestLeaks(t *testing.T) {
	for name, c := range map[string]struct {
		tests  tests
		last   time.Duration // of the goroutines
		status int
	}{
		"none":            {0, 0, 0},
		"a failed test":   {2, 0, 2},
		"they end late":   {0, Patience - time.Second, 0},
		"a leak":          {0, 2 * Patience, 1},
		"a leak, as well": {2, 2 * Patience, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				find := func(...goleak.Option) error {
					if time.Since(start) < c.last {
						return errors.New("found unexpected goroutines")
					}
					return nil
				}
				assert.Equal(t, c.status, run(c.tests, find))
				assert.LessOrEqual(t, time.Since(start), Patience)
			})
		})
	}
}
