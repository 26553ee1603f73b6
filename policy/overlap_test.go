package policy

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`^kafka://aa/`, `^kafka://bb/`, false},
		{`^kafka://aa/`, `^kafka://a./`, true},
		{`^kafka://aa/`, `/bb/`, true},
		{`/orders$`, `/audits$`, false},
		{`/orders$`, `/order.$`, true},
		{`orders`, `audits`, true},    // ordersaudits
		{`^Orders`, `^Orders`, false}, // a scheme is in lower case
		{`^orders`, `^orders`, true},  // a scheme, if an unusual one
		{`^nats://a/`, `/orders$`, true},
		{`^nats://`, `^amqp://`, false},
		{`^[a-z]+://nats/`, `^amqp://`, true},
		{`^kafka:`, `numaflow://`, false}, // a topic has no second scheme
		{`^persistent://a/b/.*é`, `.*É.*`, true},
		{`^kafka://.*é`, `.*`, false}, // no topic of Kafka's has one
		{`(?i)/ORDERS$`, `/orders$`, true},
		{`(?i)/ORDERS$`, `/order5$`, false},
		{`(?i)/K$`, "/\u212a$", true}, // the Kelvin sign, of which k is the lower case
		{`\borders\b`, `\Borders`, true},
		{`^kafka://a/b/\borders$`, `^kafka://a/b/\Borders$`, false},
		{`(?m)^orders$`, `^kafka://a`, false}, // a topic is one line
		{`^(?:kafka|persistent)://(?:a|b)/`, `^kafka://(?:b|c)/`, true},
		{`^(?:kafka|persistent)://(?:a|b)/`, `^numaflow://(?:b|c)/`, false},
		{`[0-9]{3}$`, `[a-f]{3}$`, false},
		{`[0-9a]{3}$`, `[a-f]{3}$`, true},
		{`^numaflow://[A-Z]`, `.*`, false},
		{`/(a|b)*c$`, `/(ab)+d?c?$`, true},
		{`a{1000}$`, `b{1000}$`, false},
		{`\pL+$`, `\pN+$`, false},
		{``, `x`, true},
		{`$^`, `x`, false},
	} {
		steps := maxOverlapSteps
		topic, decided := overlap(compile(c.a), compile(c.b), &steps)
		t.Logf("%d steps: %q %q: %.60q", maxOverlapSteps-steps, c.a, c.b, topic)
		assert.True(t, decided, "%q %q", c.a, c.b)
		assert.Equal(t, c.want, topic != "", "%q %q: %q", c.a, c.b, topic)
		if topic == "" {
			continue
		}
		got, err := ParseTopic(topic)
		if len(topic) < 200 {
			require.NoError(t, err)
			assert.Equal(t, topic, got.String())
		}
		assert.True(
			t, regexp.MustCompile(c.a).MatchString(topic) && regexp.MustCompile(c.b).MatchString(topic),
			topic,
		)
	}
	steps := 1_000_000
	_, decided := overlap(compile(`^kafka`), compile(`é`), &steps)
	assert.False(t, decided, "Kafka has no such name, and kafkaa://a/a/é hides behind it")
	_, decided = overlap(compile(`(?:a|b){500}c$`), compile(`(?:b|a){500}d$`), &steps)
	assert.False(t, decided, "that takes more steps")
}

// FuzzOverlap: a topic that two patterns match, if there is any, is found, and what is found is
// one.
func FuzzOverlap(f *testing.F) {
	f.Add(`^kafka://aa/`, `^kafka://bb/`, uint64(1))
	f.Add(`orders\b`, `(?i)\BORDERS|^k.*[^a]$`, uint64(2))
	f.Fuzz(func(t *testing.T, a, b string, seed uint64) {
		if len(a)+len(b) > 100 || PatternScope(a).Validate() != nil || PatternScope(b).Validate() != nil {
			return
		}
		steps := 200_000
		topic, decided := overlap(compile(a), compile(b), &steps)
		ra, rb := regexp.MustCompile(a), regexp.MustCompile(b)
		if topic != "" && !(ra.MatchString(topic) && rb.MatchString(topic)) {
			t.Fatalf("%q and %q do not both match %q", a, b, topic)
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		for range 200 {
			url := randomURL(rng, a+b)
			_, err := ParseTopic(url)
			if both := ra.MatchString(url) && rb.MatchString(url); err == nil && decided && topic == "" && both {
				t.Fatalf("%q and %q both match %q", a, b, url)
			}
		}
	})
}

// TestOverlapFindsWhatRandomTopicsFind compares overlap with many random topics, on random
// patterns of few letters.
func TestOverlapFindsWhatRandomTopicsFind(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var disjoint, shared int
	for range 3000 {
		a, b := randomPattern(rng, 3), randomPattern(rng, 3)
		steps := maxOverlapSteps
		topic, decided := overlap(compile(a), compile(b), &steps)
		require.True(t, decided, "%q %q", a, b)
		ra, rb := regexp.MustCompile(a), regexp.MustCompile(b)
		if topic != "" {
			shared++
			_, err := ParseTopic(topic)
			require.NoError(t, err, "%q and %q: %q", a, b, topic)
			require.True(t, ra.MatchString(topic) && rb.MatchString(topic), "%q and %q: %q", a, b, topic)
			continue
		}
		disjoint++
		for range 300 {
			url := randomURL(rng, "ab-")
			require.False(t, ra.MatchString(url) && rb.MatchString(url), "%q and %q: %q", a, b, url)
		}
	}
	t.Logf("%d pairs are disjoint, %d are not", disjoint, shared)
	assert.Greater(t, min(disjoint, shared), 300)
}

func randomPattern(rng *rand.Rand, depth int) string {
	if depth == 0 || rng.IntN(4) == 0 {
		return []string{
			"a", "b", "-", "[ab]", "[^a]", ".", "/", "^", "$", `\b`, `\B`, "(?i)A", "^kafka://",
		}[rng.IntN(13)]
	}
	x, y := randomPattern(rng, depth-1), randomPattern(rng, depth-1)
	switch rng.IntN(6) {
	case 0:
		return "(?:" + x + "|" + y + ")"
	case 1:
		return "(?:" + x + ")*"
	case 2:
		return "(?:" + x + "){2}"
	case 3:
		return x + y + "$"
	}
	return x + y
}

// randomURL returns the URL of a topic, with names out of the letters of some text.
func randomURL(rng *rand.Rand, letters string) string {
	runes := []rune(letters + "a")
	name := func() string {
		var b strings.Builder
		for range 1 + rng.IntN(3) {
			b.WriteRune(runes[rng.IntN(len(runes))])
		}
		return b.String()
	}
	schemes := []string{Persistent, NonPersistent, Kafka, Numaflow, "nats"}
	return schemes[rng.IntN(len(schemes))] + "://" + name() + "/" + name() + "/" + name()
}

func BenchmarkOverlap(b *testing.B) {
	for name, c := range map[string][2]string{
		"prefix":   {`^kafka://aa/`, `^kafka://bb/`},
		"suffix":   {`/orders-[a-z]+$`, `/orders_[a-z]+$`},
		"middle":   {`^kafka://public/.*/orders-`, `^kafka://public/.*/audits-`},
		"together": {`^kafka://public/.*/orders-`, `^kafka://[a-z]*/.*/orders-`},
	} {
		b.Run(name, func(b *testing.B) {
			x, y := compile(c[0]), compile(c[1])
			total := 0
			for b.Loop() {
				steps := maxOverlapSteps
				overlap(x, y, &steps)
				total += maxOverlapSteps - steps
			}
			b.ReportMetric(float64(total)/float64(b.N), "steps/op")
		})
	}
}
