package policy_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/policy"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]policy.Rate{
		"1000":      {1000, time.Second},
		"1000/s":    {1000, time.Second},
		"10000/1m":  {10000, time.Minute},
		"1/6s":      {1, 6 * time.Second},
		"1/h":       {1, time.Hour},
		"24/24h":    {24, 24 * time.Hour},
		"0":         {0, time.Second},
		"0/1m":      {0, time.Minute},
		"1000000":   {1e6, time.Second},
		"1/1us":     {1, time.Microsecond},
		" 5/100ms ": {5, 100 * time.Millisecond},
	} {
		got, err := policy.ParseRate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, reason := range map[string]string{
		"":                     "invalid rate: want 1000, 10000/1m or 1/6s",
		"-1":                   "negative",
		"-Inf":                 "negative",
		"NaN":                  "invalid rate: want",
		"+5":                   "invalid rate: want",
		"0.5/s":                "not a whole number",
		"5x":                   "invalid rate: want",
		"1kB/s":                "invalid rate: want",
		"99999999999999999999": "too large",
		"1000/":                "invalid period",
		"1000/0s":              "invalid period",
		"1000/-1s":             "invalid period",
		"1000/fortnight":       "invalid period",
		"1000/1s/1s":           "invalid period",
		"1000/25h":             "above 24h",
		"1/2h":                 "below 1/h",
		"23/24h":               "below 1/h",
		"1000001":              "above 1000000/s",
		"2/1us":                "above 1000000/s",
		"1/999ns":              "above 1000000/s",
		"9223372036854775807":  "above 1000000/s",
	} {
		_, err := policy.ParseRate(text)
		require.ErrorContains(t, err, reason, text)
		require.Equal(t, []string{"rate"}, fields(err))
	}
}

func TestParseByteRate(t *testing.T) {
	for text, want := range map[string]policy.Rate{
		"1MiB/s":        {1 << 20, time.Second},
		"100kB/s":       {100_000, time.Second},
		"5 GiB/1m":      {5 << 30, time.Minute},
		"1000000000000": {1e12, time.Second},
		"1TB":           {1e12, time.Second},
	} {
		got, err := policy.ParseByteRate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, reason := range map[string]string{
		"1000000000001": "above",
		"1XB":           "invalid rate: want",
		"1MMB":          "unknown unit",
		"kB":            "invalid rate: want",
		"9999999999TiB": "too large",
	} {
		_, err := policy.ParseByteRate(text)
		require.ErrorContains(t, err, reason, text)
	}
}

func TestRateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := policy.Rate{
			Permits: rapid.Int64Range(0, 1e9).Draw(t, "permits"),
			Period:  time.Duration(rapid.Int64Range(1, int64(policy.MaxPeriod)).Draw(t, "period")),
		}
		got, err := policy.ParseRate(r.String())
		perSecond := r.PerSec()
		if err != nil {
			assert.True(
				t, perSecond > policy.MaxMessageRate*(1-1e-9) || perSecond < (1+1e-9)/3600, "%v: %v", r, err,
			)
			return
		}
		assert.Equal(t, r, got)
		assert.True(
			t, r.Permits == 0 || perSecond < policy.MaxMessageRate*(1+1e-9) && perSecond > (1-1e-9)/3600,
		)
	})
	assert.Equal(t, "1000/s", policy.PerSecond(1000).String())
	assert.Equal(t, "10000/1m", policy.Rate{Permits: 10000, Period: time.Minute}.String())
	assert.Equal(t, "1/1h", policy.Rate{Permits: 1, Period: time.Hour}.String())
	assert.Equal(t, "0", policy.PerSecond(0).String())
	assert.Equal(t, "", policy.Rate{}.String())
	assert.False(t, policy.PerSecond(0).Limited())
}

func ExampleParseRate() {
	for _, text := range []string{"1000", "10000/1m", "1/6s", "0", "-5"} {
		rate, err := policy.ParseRate(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(rate, rate.Limited())
	}
	// Output:
	// 1000/s true
	// 10000/1m true
	// 1/6s true
	// 0 false
	// policy: rate "-5": invalid rate: negative: want 1000, 10000/1m or 1/6s
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"9999999h": math.MaxInt64, "1h99999999999999999999.5ns": math.MaxInt64,
		"2562047h48m": math.MaxInt64, "1.5h": 90 * time.Minute, "0": 0, "-1s": -time.Second,
	} {
		got, err := policy.ParseDuration(text)
		assert.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "9999999x", "9999999", "h", "999999999999999999999999", "-9999999h", "1h9999999 h",
	} {
		_, err := policy.ParseDuration(text)
		assert.Error(t, err, text)
	}
}
