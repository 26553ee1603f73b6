package hour

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/tests/chaos/hour/journal"
)

// A report is what an hour has shown.
type report struct {
	seed      uint64
	d         time.Duration
	done      map[Kind]int
	delivered [groups]int // before the limits were lifted
	verdicts  [groups]journal.Verdict
	limits    []held
}

// A held is how a limit was held.
type held struct {
	*limit
	regular, outage journal.Second
}

// The bounds of any second, in percent of the limit.
const (
	always = 125 // rate x (1 s + 0.25 s)
	outage = 200 // onOutage: share, while the permit store is unavailable to some consumers or all
)

// Consumers with the throttle go on as those without: after a fault as soon, but for the time until
// the permit store is in use again, and at the rate of their limits. These are 275/s on average for
// a topic, and 225/s for one of both; the bare clients take 240/s.
const (
	slower = 15 * time.Second
	part   = 70 // percent of what the bare client was delivered
)

// check holds a report to its bounds.
func (r report) check(t *testing.T) {
	for g, v := range r.verdicts {
		assert.Empty(t, v.Lost, "%s: lost", groupNames[g])
	}
	for g, bare := range map[int]int{kafkaThrottled: kafkaBare, pulsarThrottled: pulsarBare} {
		assert.Empty(t, r.verdicts[g].Reordered, "%s: reordered", groupNames[g])
		filled := r.verdicts[bare].Filled + 10 // chance: less than one restart in a hundred has one
		assert.LessOrEqual(t, r.verdicts[g].Filled, filled, "%s: holes filled at a handover", groupNames[g])
		again := r.verdicts[bare].Again
		again += again/4 + 200 // chance: each kill has up to a batch delivered again
		assert.LessOrEqual(t, r.verdicts[g].Again, again, "%s: delivered again", groupNames[g])
		silence := time.Duration(r.verdicts[bare].Silence)
		assert.LessOrEqual(t, time.Duration(r.verdicts[g].Silence), silence+max(silence, slower),
			"%s: longest time without a delivery", groupNames[g])
		assert.GreaterOrEqual(t, r.delivered[g], r.delivered[bare]*part/100, "%s: delivered", groupNames[g])
	}
	for _, h := range r.limits {
		assert.LessOrEqual(t, h.regular.Percent(), always, "%s: any second", h.name)
		during := always
		if h.share {
			during = outage
		}
		assert.LessOrEqual(t, h.outage.Percent(), during, "%s: any second of an outage", h.name)
	}
}

// String is the report as text of a document.
func (r report) String() string {
	var b strings.Builder
	total := 0
	for _, n := range r.done {
		total += n
	}
	fmt.Fprintf(&b, "Seed %d, %v, %d faults.\n\n", r.seed, r.d, total)
	b.WriteString("| fault | times |\n| --- | --- |\n")
	for _, deck := range decks {
		for _, kind := range deck.kinds {
			fmt.Fprintf(&b, "| %s | %d |\n", kind, r.done[kind])
		}
	}
	b.WriteString("\n| | Kafka | its bare client | Pulsar | its bare client |\n| --- | --- | --- | --- | --- |\n")
	for _, row := range []struct {
		name  string
		value func(group int) any
	}{
		{"produced", func(g int) any { return r.verdicts[g].Produced }},
		{"delivered before the limits were lifted", func(g int) any { return r.delivered[g] }},
		{"lost", func(g int) any { return len(r.verdicts[g].Lost) }},
		{"reordered within an owner", func(g int) any { return len(r.verdicts[g].Reordered) }},
		{"holes filled at a handover", func(g int) any { return r.verdicts[g].Filled }},
		{"delivered again after seeks", func(g int) any { return r.verdicts[g].AgainBySeek }},
		{"delivered again otherwise", func(g int) any { return r.verdicts[g].Again }},
		{"longest time without a delivery", func(g int) any {
			return time.Duration(r.verdicts[g].Silence).Round(100 * time.Millisecond)
		}},
	} {
		fmt.Fprintf(&b, "| %s |", row.name)
		for _, g := range []int{kafkaThrottled, kafkaBare, pulsarThrottled, pulsarBare} {
			fmt.Fprintf(&b, " %v |", row.value(g))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n| limit of | `onOutage` | highest second | while the permit store is unavailable to some or all |\n" +
		"| --- | --- | --- | --- |\n")
	for _, h := range r.limits {
		onOutage := "stop"
		if h.share {
			onOutage = "share"
		}
		fmt.Fprintf(&b, "| %s | %s |", h.name, onOutage)
		for _, s := range []journal.Second{h.regular, h.outage} {
			fmt.Fprintf(&b, " %d %%: %d at %d/s |", s.Percent(), s.N, s.PerSecond)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestPlan: a seed always gives the same plan, in which faults of a lane do not overlap.
func TestPlan(t *testing.T) {
	const d = time.Hour
	for seed := range uint64(20) {
		plan := Plan(seed, d)
		assert.Equal(t, plan, Plan(seed, d))
		assert.NotEqual(t, plan, Plan(seed+1, d))
		for i, lane := range plan {
			end := time.Duration(0)
			for _, f := range lane {
				assert.GreaterOrEqual(t, f.At, end, "%v", f)
				end = f.At + f.For
			}
			assert.LessOrEqual(t, end, d)
			for _, kind := range decks[i].kinds {
				assert.True(t, slices.ContainsFunc(lane, func(f Fault) bool { return f.Kind == kind }), kind)
			}
		}
	}
}
