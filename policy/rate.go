package policy

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Rate is a number of permits added every period. The zero Rate is not set; 0 permits with a
// period mean "no limit". Rates are compared with ==.
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

// PerSecond returns a rate of n permits a second; n = 0 means "no limit".
func PerSecond(n int64) Rate { return Rate{n, time.Second} }

// Limited reports whether the rate is a limit.
func (r Rate) Limited() bool { return r.Permits > 0 && r.Period > 0 }

// PerSec returns the permits a second; 0 if the rate is no limit.
func (r Rate) PerSec() float64 {
	if !r.Limited() {
		return 0
	}
	return float64(r.Permits) / r.Period.Seconds()
}

// String returns the shortest text that [ParseRate] reads as r: 1000/s, 10000/1m, 1/6s, 0, and ""
// if r is not set.
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

// ParseRate reads a rate of messages: 1000 or 1000/s, 10000/1m, 1/6s, 1/h, and 0 for "no limit".
// Its error is a *[FieldError] of the field "rate".
func ParseRate(s string) (Rate, error) { return readRate(s, false, MaxMessageRate) }

// ParseByteRate reads a rate of bytes: what [ParseRate] reads, and sizes with a unit, such as
// 1MiB/s or 100kB/s.
func ParseByteRate(s string) (Rate, error) { return readRate(s, true, MaxByteRate) }

func readRate(s string, bytes bool, maxPerSecond int64) (Rate, error) {
	r, err := parseRate(s, bytes)
	if err == nil {
		err = r.check(maxPerSecond)
	}
	if err != nil {
		return Rate{}, &FieldError{"rate", s, err.Error()}
	}
	return r, nil
}

const (
	rateForms   = "1000, 10000/1m or 1/6s"
	byteForms   = "1048576, 1MiB/s or 100kB/s"
	periodForms = "s, 6s, 1m or 1h after the slash"

	throughputForms = "bytes a second, such as 409600 or 1MiB"
)

// parseRate reads a rate without a look at its bounds.
func parseRate(s string, bytes bool) (Rate, error) {
	count, per, hasPeriod := strings.Cut(strings.TrimSpace(s), "/")
	r := Rate{Period: time.Second}
	var err error
	if r.Permits, err = parseCount(count, bytes); err != nil {
		return Rate{}, err
	}
	if hasPeriod {
		if r.Period, err = parsePeriod(per); err != nil {
			return Rate{}, err
		}
	}
	return r, nil
}

// parseCount reads a whole number, followed by the unit of a size if bytes is true.
func parseCount(s string, bytes bool) (int64, error) {
	digits, unit, forms := s, "", rateForms
	if bytes {
		digits = strings.TrimRight(s, "BKMGTkmgtib ")
		unit, forms = strings.TrimSpace(s[len(digits):]), byteForms
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		_, floatErr := strconv.ParseFloat(digits, 64)
		switch {
		case strings.HasPrefix(digits, "-"):
			return 0, fmt.Errorf("invalid rate: negative: want %s", forms)
		case errors.Is(err, strconv.ErrRange):
			return 0, fmt.Errorf("invalid rate: too large: want %s", forms)
		case strings.Trim(digits, "0123456789.") == "" && floatErr == nil:
			return 0, errors.New("invalid rate: not a whole number: want a longer period, " +
				"such as 1/2s for half a permit a second")
		}
		return 0, fmt.Errorf("invalid rate: want %s", forms)
	}
	factor, ok := sizes[unit]
	if !ok {
		return 0, fmt.Errorf("invalid rate: unknown unit %q: want B, kB, MB, GB, KiB, MiB or GiB",
			unit)
	}
	if n > math.MaxInt64/uint64(factor) {
		return 0, fmt.Errorf("invalid rate: too large: want %s", forms)
	}
	return int64(n) * factor, nil
}

var sizes = map[string]int64{
	"": 1, "B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// parsePeriod reads a duration; a unit alone means one of it.
func parsePeriod(s string) (time.Duration, error) {
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		s = "1" + s
	}
	d, err := ParseDuration(s)
	switch {
	case err != nil || d <= 0:
		return 0, errors.New("invalid rate: invalid period: want " + periodForms)
	case d > MaxPeriod:
		return 0, fmt.Errorf("invalid rate: period above %s: want a shorter one",
			Duration(MaxPeriod))
	}
	return d, nil
}

// check reports what is wrong with a rate of which at most maxPerSecond are allowed. It is exact.
func (r Rate) check(maxPerSecond int64) error {
	switch {
	case r.Permits < 0:
		return fmt.Errorf("invalid rate: negative: want %s", rateForms)
	case r.Period <= 0:
		return fmt.Errorf("invalid rate: no period: want %s", rateForms)
	case r.Period > MaxPeriod:
		return fmt.Errorf("invalid rate: period above %s: want a shorter one", Duration(MaxPeriod))
	case r.Permits == 0:
		return nil
	case time.Duration(min(r.Permits, 24))*time.Hour < r.Period: // 24 reaches the longest period
		return errors.New("out of range: below 1/h: want a higher rate; pause stops a scope")
	case exceeds(r, maxPerSecond):
		return fmt.Errorf("out of range: above %d/s: want a lower rate, or 0 for no limit",
			maxPerSecond)
	}
	return nil
}

// exceeds reports Permits/Period > perSecond. Both bounds are powers of ten on either side of 1e9,
// so that no rounding matters: n > ⌊x⌋ is n > x for whole n.
func exceeds(r Rate, perSecond int64) bool {
	if perSecond >= 1e9 {
		return r.Permits > int64(r.Period)*(perSecond/1e9)
	}
	return r.Permits > int64(r.Period)/(1e9/perSecond)
}

// parseThroughput reads bytes of cost a second: 409600, 1MiB, 400kB/s. Parts of a byte are rounded
// up.
func parseThroughput(s string) (int64, error) {
	r, err := parseRate(s, true)
	if err == nil {
		err = r.check(MaxByteRate)
	}
	if err != nil {
		reason, _, _ := strings.Cut(err.Error(), ": want") // rates want something else
		reason = strings.Replace(reason, "invalid rate", "invalid throughput", 1)
		return 0, errors.New(reason + ": want " + throughputForms)
	}
	return int64(math.Ceil(r.PerSec())), nil
}

// A Duration is a time.Duration that is written without units that are zero. 0 means "not set".
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

var durationSyntax = regexp.MustCompile(
	`^\+?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+$`)

// ParseDuration is time.ParseDuration, except that a duration that is too long for it is the
// longest one there is, so that its caller finds it out of range.
func ParseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil && durationSyntax.MatchString(text) {
		return math.MaxInt64, nil
	}
	return d, err
}
