package policy

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Rate is a number of permits added every period. The zero Rate is not set; Permits 0
// with a Period means "not throttled". Rates are compared with ==.
type Rate struct {
	Permits int64         // messages or bytes
	Period  time.Duration // 0: not set
}

// Bounds of a rate that is set and not 0. The slowest is one permit an hour.
const (
	MaxMessageRate = 1_000_000         // messages a second
	MaxByteRate    = 1_000_000_000_000 // bytes a second
	MaxPeriod      = 24 * time.Hour
)

// PerSecond returns a rate of n permits a second; n = 0 is "not throttled".
func PerSecond(n int64) Rate { return Rate{n, time.Second} }

// IsSet reports whether the rate says anything, be it "not throttled".
func (r Rate) IsSet() bool { return r.Period != 0 }

// Limited reports whether the rate throttles.
func (r Rate) Limited() bool { return r.Permits > 0 && r.Period > 0 }

// PerSec returns the permits a second; 0 if the rate does not throttle.
func (r Rate) PerSec() float64 {
	if !r.Limited() {
		return 0
	}
	return float64(r.Permits) / r.Period.Seconds()
}

// String returns the shortest text that [ParseRate] reads as r: 1000/s, 10000/1m, 1/6s, 0, and "" if r is not set.
func (r Rate) String() string {
	switch {
	case r == Rate{}:
		return ""
	case r == PerSecond(0):
		return "0"
	case r.Period == time.Second:
		return strconv.FormatInt(r.Permits, 10) + "/s"
	}
	return strconv.FormatInt(r.Permits, 10) + "/" + Duration(r.Period).String()
}

// ParseRate reads a rate of messages: 1000 or 1000/s, 10000/1m, 1/6s, 1/h, and 0 for "not
// throttled". Its error is a *[FieldError] of the field "rate".
func ParseRate(s string) (Rate, error) {
	r, err := parseRate(s, false)
	if err == nil {
		err = r.check(MaxMessageRate)
	}
	return checked(r, s, err)
}

// ParseByteRate reads a rate of bytes: what [ParseRate] reads, and sizes with a unit, such as
// 1MiB/s or 100kB/s.
func ParseByteRate(s string) (Rate, error) {
	r, err := parseRate(s, true)
	if err == nil {
		err = r.check(MaxByteRate)
	}
	return checked(r, s, err)
}

// MarshalText returns what String returns.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what String wrote. Whether the rate is too high depends on whether it counts
// messages or bytes, and is for [Policy.Validate] to say.
func (r *Rate) UnmarshalText(text []byte) error {
	got, err := parseRate(string(text), false)
	if err == nil {
		err = got.check(MaxByteRate)
	}
	if got, err = checked(got, string(text), err); err != nil {
		return err
	}
	*r = got
	return nil
}

func checked(r Rate, text string, err error) (Rate, error) {
	if err != nil {
		return Rate{}, &FieldError{Field: "rate", Value: text, Reason: err.Error()}
	}
	return r, nil
}

func parseRate(s string, bytes bool) (Rate, error) {
	count, per, hasPer := strings.Cut(strings.TrimSpace(s), "/")
	if count == "" {
		return Rate{}, fmt.Errorf("is empty: %s", rateForms)
	}
	r := Rate{Period: time.Second}
	var err error
	if r.Permits, err = parseCount(count, bytes); err != nil {
		return Rate{}, err
	}
	if hasPer {
		if r.Period, err = parsePeriod(per); err != nil {
			return Rate{}, err
		}
	}
	return r, nil
}

const rateForms = "write a rate such as 1000, 1000/s, 10000/1m or 1/6s, or 0 for not throttled"

// parseCount reads a whole number, with the unit of a size behind it if bytes is true.
func parseCount(s string, bytes bool) (int64, error) {
	digits, unit := s, ""
	if bytes {
		digits = strings.TrimRight(s, "BKMGTkmgtib ")
		unit = strings.TrimSpace(s[len(digits):])
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		_, floatErr := strconv.ParseFloat(digits, 64)
		switch {
		case strings.HasPrefix(digits, "-"):
			return 0, fmt.Errorf("is negative: %s", rateForms)
		case strings.Trim(digits, "0123456789") == "" && digits != "":
			return 0, fmt.Errorf("is too large: %s", rateForms)
		case strings.Trim(digits, "0123456789.") == "" && floatErr == nil:
			return 0, fmt.Errorf("is not a whole number: write a longer period instead, such as 1/2s for half a permit a second")
		}
		return 0, fmt.Errorf("is not a number: %s", rateForms)
	}
	factor, ok := sizes[unit]
	if !ok {
		return 0, fmt.Errorf("has the unknown unit %q: use B, kB, MB, GB, KiB, MiB or GiB", unit)
	}
	if n > math.MaxInt64/uint64(factor) {
		return 0, fmt.Errorf("is too large: %s", rateForms)
	}
	return int64(n) * factor, nil
}

var sizes = map[string]int64{
	"": 1, "B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// parsePeriod reads a duration; a unit alone means one of it.
func parsePeriod(s string) (time.Duration, error) {
	if s == "" {
		return 0, fmt.Errorf("has an empty period: write s, 6s, 1m or 1h behind the slash")
	}
	if s[0] >= 'a' && s[0] <= 'z' {
		s = "1" + s
	}
	d, err := ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("has a period that is no duration: write s, 6s, 1m or 1h behind the slash")
	case d <= 0:
		return 0, fmt.Errorf("has a period that is not above 0: write s, 6s, 1m or 1h behind the slash")
	case d > MaxPeriod:
		return 0, fmt.Errorf("has a period above %s: write a shorter one", Duration(MaxPeriod))
	}
	return d, nil
}

// check reports what is wrong with a rate of which at most maxPerSecond are allowed. It is exact.
func (r Rate) check(maxPerSecond int64) error {
	switch {
	case r.Permits < 0:
		return fmt.Errorf("is negative: %s", rateForms)
	case r.Period < 0:
		return fmt.Errorf("has a period that is not above 0: %s", rateForms)
	case r.Period > MaxPeriod:
		return fmt.Errorf("has a period above %s: write a shorter one", Duration(MaxPeriod))
	case r.Permits == 0:
		return nil
	case r.Period == 0:
		return fmt.Errorf("has no period: %s", rateForms)
	case time.Duration(min(r.Permits, 24))*time.Hour < r.Period: // 24 an hour reach the longest period
		return fmt.Errorf("is below 1/h, the lowest rate: raise it, or pause the scope")
	case exceeds(r, maxPerSecond):
		return fmt.Errorf("is above %d/s, the highest rate: lower it, or write 0 for not throttled", maxPerSecond)
	}
	return nil
}

// exceeds reports Permits/Period > perSecond. Both bounds are a power of ten on either side of 1e9, so
// that the comparison needs no rounding that matters: n > ⌊x⌋ is n > x for whole n.
func exceeds(r Rate, perSecond int64) bool {
	if perSecond >= 1e9 {
		return r.Permits > int64(r.Period)*(perSecond/1e9)
	}
	return r.Permits > int64(r.Period)/(1e9/perSecond)
}

// A Duration is a time.Duration that is text in JSON: "100ms". 0 means not set.
type Duration time.Duration

// String returns the duration without units that are zero: 1m rather than 1m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalText returns what String returns.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

var durationSyntax = regexp.MustCompile(`^\+?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+$`)

// ParseDuration is time.ParseDuration, except that what is too long for it is the longest one there is, so
// that it is found to be out of the bounds of whatever it is for.
func ParseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil && durationSyntax.MatchString(text) {
		return math.MaxInt64, nil
	}
	return d, err
}

// UnmarshalText reads what [ParseDuration] reads, except for 0, which would mean "not set".
func (d *Duration) UnmarshalText(text []byte) error {
	got, err := ParseDuration(string(text))
	switch {
	case err != nil:
		return &FieldError{Field: "duration", Value: string(text), Reason: "is no duration: write 100ms, 1s or 1m"}
	case got == math.MaxInt64:
		return &FieldError{Field: "duration", Value: string(text), Reason: "is longer than any field may be: write 100ms, 1s or 1m"}
	case got == 0:
		return &FieldError{Field: "duration", Value: string(text), Reason: "is 0: leave it out to have the default"}
	}
	*d = Duration(got)
	return nil
}
