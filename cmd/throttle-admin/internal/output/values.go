package output

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// Fields returns the fields that settings set: "messageRate=500/s ramp.over=1m".
func Fields(s policy.Settings) string {
	var texts []string
	for _, field := range policy.Fields(s) {
		texts = append(texts, field+"="+policy.Text(s, field))
	}
	return strings.Join(texts, " ")
}

// Left returns the time until t, rounded to seconds or, above an hour, to minutes.
func Left(t, now time.Time) string {
	d := t.Sub(now)
	unit := time.Second
	if d > time.Hour {
		unit = time.Minute
	}
	return policy.Duration(max(d.Round(unit), 0)).String()
}

// Seconds returns a duration of s seconds, rounded to milliseconds or, from a second on, to 0.1
// s.
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// Number returns a number with three significant digits, or more before the decimal point.
func Number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

// OrNone returns a number, or "-" if it is not known (NaN).
func OrNone(rate float64) string {
	if math.IsNaN(rate) {
		return "-"
	}
	return Number(rate)
}

// Dash returns s, or "-" if it is empty.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Expires returns when a policy ends: "in 2h", or "never" for a permanent one.
func Expires(at, now time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return "in " + Left(at, now)
}
