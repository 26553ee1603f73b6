package policy

import (
	"math"
	"regexp"
	"strings"
	"time"
)

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
