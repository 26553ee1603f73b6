package chaos

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/tables"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A cell is what a fault did to the limit of one mode.
type cell struct {
	max      int           // in any second, percent
	recovery time.Duration // from the end of the fault until the limit was in use
}

// A row is what a fault did.
type row struct {
	fault   fault
	cells   []cell        // by mode
	gap     time.Duration // the shortest between two strict permits
	slowest time.Duration
	failed  int64 // requests
}

// tries is how often a fault is measured whose loose bounds do not hold: a busy machine releases
// permits late.
const tries = 3

// failures are those of assertions on loose bounds.
type failures []string

func (f *failures) Errorf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

const settled = 2 * time.Second // that a fleet runs before a fault

// run measures a fault.
func (c fault) run(t *testing.T) row {
	t.Helper()
	target := c.open(t)
	f := start(t, target.url)
	defer f.end()
	for i, took := range f.recover(throttletest.Patience) {
		require.NotEqual(t, never, took, "%s: the limit is not in full use", modes[i].sharing)
	}
	time.Sleep(settled)
	from, failed := f.records[0].Now()-settled, f.failed()
	require.NotEmpty(t, c.effects)
	var checks []func()
	for _, e := range c.effects {
		checks = append(checks, e(t, f, target))
	}
	c.do(t, target)
	took := f.recover(never)
	time.Sleep(time.Second)
	for _, check := range checks {
		check()
	}
	f.end()
	r := row{fault: c, failed: f.failed() - failed}
	for i, m := range modes {
		max := (100*f.records[i].Max(time.Second, from) + m.rate - 1) / m.rate
		r.cells = append(r.cells, cell{max, took[i]})
	}
	r.gap, r.slowest = f.minGap(from), f.slowest
	return r
}

// check holds a row to the bounds.
func (r row) check(t *testing.T, loose assert.TestingT) {
	for i, m := range modes {
		c := r.cells[i]
		assert.LessOrEqual(t, c.max, m.hard, "%s: any second", m.sharing)
		if !r.fault.late {
			assert.LessOrEqual(loose, c.max, m.loose, "%s: any second", m.sharing)
		}
		bound := max(m.recovery, r.fault.recovery)
		assert.Less(loose, c.recovery, bound, "%s: recovery", m.sharing)
	}
	assert.GreaterOrEqual(t, r.gap, hardGap, "strict: spacing")
	if !r.fault.late {
		assert.GreaterOrEqual(loose, r.gap, looseGap, "strict: spacing")
	}
	assert.Less(loose, r.slowest, 450*time.Millisecond, "slowest call")
}

// worse is the worst of a row and another measurement of its fault.
func (r row) worse(other row) row {
	if r.cells == nil {
		return other
	}
	for i, c := range other.cells {
		r.cells[i] = cell{max(r.cells[i].max, c.max), max(r.cells[i].recovery, c.recovery)}
	}
	r.gap, r.slowest = min(r.gap, other.gap), max(r.slowest, other.slowest)
	return r
}

func (r row) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | %s |", r.fault.store, r.fault.name)
	for _, c := range r.cells {
		fmt.Fprintf(&b, " %d %%, %.1f s |", c.max, c.recovery.Seconds())
	}
	fmt.Fprintf(&b, " %d ms | %d ms |", r.gap.Milliseconds(), r.slowest.Milliseconds())
	return b.String()
}

// table has a line for each row.
func table(rows []row) []byte {
	var b strings.Builder
	b.WriteString("| store | fault |")
	for _, m := range modes {
		fmt.Fprintf(&b, " %s, %d/s |", m.sharing, m.rate)
	}
	b.WriteString(" strict spacing | slowest call |\n|")
	b.WriteString(strings.Repeat(" --- |", len(modes)+4) + "\n")
	for _, r := range rows {
		b.WriteString(r.String() + "\n")
	}
	return []byte(b.String())
}

// TestMatrix holds all limits to their bounds through each fault of each store. With
// THROTTLE_MATRIX=FILE it writes the table of what it measured into a document: of a fault that was
// measured again, the worst.
func TestMatrix(t *testing.T) {
	file := os.Getenv("THROTTLE_MATRIX")
	if file == "" {
		t.Skip("takes minutes: make chaos-matrix")
	}
	rows := make([]row, len(faults))
	var written sync.Mutex
	t.Cleanup(func() {
		written.Lock()
		defer written.Unlock()
		if file == "" || t.Failed() {
			return
		}
		assert.NoError(t, tables.Write(file, "chaos-matrix", table(rows)))
	})
	for i, c := range faults {
		t.Run(c.store+" "+c.name, func(t *testing.T) {
			t.Parallel()
			for try := 1; ; try++ {
				r := c.run(t)
				t.Logf("%v %d requests failed", r, r.failed)
				written.Lock()
				rows[i] = rows[i].worse(r)
				written.Unlock()
				var loose failures
				r.check(t, &loose)
				if len(loose) == 0 || t.Failed() {
					return
				}
				if try == tries {
					t.Error(strings.Join(loose, "\n"))
					return
				}
			}
		})
	}
}
