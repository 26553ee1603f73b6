package demo

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/loosely"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// demoRun runs the command, and returns its exit status and output.
func demoRun(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	return clitest.Run(ctx, []cli.Family{Commands}, args...)
}

func TestDemoMeasures(t *testing.T) {
	for name, flags := range map[string][]string{
		"kafka": nil, "pulsar": {"--pulsar", services.Pulsar(t).URL},
	} {
		t.Run(name, func(t *testing.T) {
			loosely.Hold(t, func(loose assert.TestingT) { demoMeasures(t, loose, flags...) })
		})
	}
}

func demoMeasures(t *testing.T, loose assert.TestingT, flags ...string) {
	args := append([]string{"demo", "--duration", "3s", "-o", "json"}, flags...)
	status, out, errs := demoRun(t.Context(), args...)
	require.Equal(t, cli.ExitDone, status, errs)
	assert.Empty(t, errs)
	var m measurement
	require.NoError(t, json.Unmarshal([]byte(out), &m))
	assert.Equal(t, 1000.0, m.Limit)
	assert.GreaterOrEqual(t, m.Seconds, 3.0)
	assert.InDelta(t, float64(m.Dispatched)/m.Seconds, m.Rate, 1)
	assert.GreaterOrEqual(loose, m.Rate, 900.0, "of the limit is lost")
	// What is dispatched stays within rate x (d + 0.25 s).
	assert.LessOrEqual(t, float64(m.Dispatched), 1000*(m.Seconds+0.25))
	assert.LessOrEqual(t, m.MaxWindow, 1250)
	require.Len(t, m.Subscriptions, 2)
	for _, s := range m.Subscriptions {
		assert.InDelta(loose, 0.5, s.Share, 0.05, s.Name)
	}
	assert.Less(loose, m.RequestsPerMessage, 0.1)
}

func TestDemoShows(t *testing.T) {
	loosely.Hold(t, func(loose assert.TestingT) { demoShows(t, loose) })
}

func demoShows(t *testing.T, loose assert.TestingT) {
	status, out, errs := demoRun(t.Context(), "demo", "--duration", "8s", "--plain")
	require.Equal(t, cli.ExitDone, status, errs)
	assert.Empty(t, errs)
	for _, want := range []string{
		`set-msg-rate kafka://public/default/demo-orders 1000/s: revision`,
		`limit 1000/s \| billing \d+/s \d+ % backlog \d+ throttled ` +
			`\| alerts \d+/s \d+ % backlog \d+ throttled`,
		`4\.\d s  set-msg-rate kafka://public/default/demo-orders 2000/s: in force everywhere`,
		`\d s  alerts has caught up \(backlog \d+\): not throttled, not charged`,
		`limit 2000/s \| billing \d+/s \d+ % backlog \d+ throttled ` +
			`\| alerts \d+/s \d+ % backlog \d+ caught up`,
		`\n  limit 1000/s +\d+ messages in +\d`,
		`\n  limit 2000/s +\d+ messages in +\d`,
		`alerts caught up after \d`,
		`\d+ requests to the permit store`,
	} {
		assert.Regexp(loose, want, out)
	}
	assert.NotContains(t, out, "\x1b", "a pipe is not a terminal")
}

func TestDemoEndsAtOnce(t *testing.T) {
	for _, after := range []time.Duration{0, 30 * time.Millisecond, 2 * time.Second} {
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(after, cancel)
		start := time.Now()
		status, out, errs := demoRun(ctx, "demo")
		assert.Equal(t, cli.ExitDone, status, "after %s: %s", after, errs)
		assert.Empty(t, errs)
		assert.Less(t, time.Since(start), after+10*time.Second)
		if after > time.Second {
			assert.Contains(t, out, "Messages that the consumers received")
		}
		timer.Stop()
		cancel()
	}
}

func TestDemoRefuses(t *testing.T) {
	for _, c := range []struct{ flag, value, want string }{
		{"--limit", "ten", "--limit"},
		{"--limit", "1", "is outside 100/s..20000/s"},
		{"--duration", "0s", "is outside 1s..10m"},
		{"--policies", "ftp://x", "scheme"},
		{"--policies", "memory:", "is not shared"},
		{"--permits", "ftp://x", "scheme"},
		{"--pulsar", "http://127.0.0.1:8080", "invalid URL"},
		{"--pulsar", "pulsar://127.0.0.1:8x", "invalid URL"},
		{"--pulsar", "pulsar://adm:secret@127.0.0.1:8x", "has an @"},
	} {
		status, out, errs := demoRun(t.Context(), "demo", c.flag, c.value, "-o", "json")
		assert.Equal(t, cli.ExitUsage, status)
		assert.Empty(t, out)
		assert.Contains(t, errs, c.want, "%s %s", c.flag, c.value)
	}
}

// TestDemoChecksServices: an unavailable service is reported at once and once, without a
// measurement.
func TestDemoChecksServices(t *testing.T) {
	for _, c := range []struct{ flag, url, want string }{
		{"--permits", "redis://:secret@127.0.0.1:1", "permit store: "},
		{"--policies", "etcd://root:secret@127.0.0.1:1", "the policy store does not answer: "},
	} {
		status, out, errs := demoRun(t.Context(), "demo", c.flag, c.url, "-o", "json")
		assert.Equal(t, cli.ExitFailed, status)
		assert.Empty(t, out)
		want := "^throttle-admin: demo: " + c.want + "[^\n]+\nhint: check " + c.flag +
			", and whether [a-z ]+\n$"
		assert.Regexp(t, want, errs)
		assert.NotContains(t, errs, "secret")
	}
}

func TestDemoTable(t *testing.T) {
	throttled := groupState{replicas: 2, waiting: true, reason: dispatch.ReasonMessages}
	caughtUp := groupState{replicas: 2, caughtUp: 2, exempt: 2}
	got := strings.Join(table(17500*time.Millisecond, policy.PerSecond(2000), []row{
		{group: &group{name: "billing"}, rate: 1979, share: 0.95, backlog: 12626,
			groupState: throttled},
		{group: &group{name: "alerts"}, rate: 100, share: 0.05, backlog: 3, groupState: caughtUp},
	}), "\n")
	for _, code := range []string{bold, dim, plainText, yellow, green} {
		got = strings.ReplaceAll(got, code, "")
	}
	assert.Equal(t, `
  limit 2000/s, shared by 2 consumer groups of 4 consumers in 2 replicas   17.5 s

  GROUP        RATE  OF THE LIMIT     SHARE  BACKLOG  STATE          WHY
  billing    1979/s  ████████████████  95 %    12626  throttled      limited to its share of 2000/s
  alerts      100/s  █···············   5 %        3  caught up      no backlog
  all        2079/s  ████████████████                  1979/s throttled = 99 % of the limit
`, got)
}
