package output

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// Field returns the value of a field as people write it, "" if it is not set.
func Field(p policy.Policy, field string) string {
	data, err := json.Marshal(p.Only(field))
	var values map[string]json.RawMessage
	if err != nil || json.Unmarshal(data, &values) != nil {
		return ""
	}
	return strings.Trim(string(values[field]), `"`)
}

// Fields returns what a policy sets: "messageRate=500/s burst=100".
func Fields(p policy.Policy) string {
	var texts []string
	for field := range policy.Fields() {
		if p.Has(field) {
			texts = append(texts, field+"="+Field(p, field))
		}
	}
	return strings.Join(texts, " ")
}

// Left says how long it is until t: no finer than people care for.
func Left(t, now time.Time) string {
	d := t.Sub(now)
	unit := time.Second
	if d > time.Hour {
		unit = time.Minute
	}
	return policy.Duration(max(d.Round(unit), 0)).String()
}

// Seconds says a short time in a unit that fits.
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// Number writes a figure with three digits at least, and no more behind the point than it needs.
func Number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

// OrNone writes a figure that may not be known.
func OrNone(rate float64) string {
	if math.IsNaN(rate) {
		return "-"
	}
	return Number(rate)
}

// Dash writes a text that may be empty.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
