package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// demoRun runs the command, and returns its exit status and output.
func demoRun(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	return clitest.Run(ctx, []cli.Family{Commands}, args...)
}

// brokers are the flags for each broker of the demo.
func brokers(t *testing.T) map[string][]string {
	return map[string][]string{
		"kafka": nil, "franz-go, too": {"--clients"}, "pulsar": {"--pulsar", services.Pulsar(t).URL},
	}
}

// measured is what the demo measures at 1000 messages a second.
func measured(t *testing.T, flags []string) (m measurement) {
	t.Helper()
	status, out, errs := demoRun(t.Context(), append([]string{"demo", "--duration", "3s", "-o", "json"}, flags...)...)
	require.Equal(t, cli.ExitDone, status, errs)
	assert.Empty(t, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &m))
	assert.Equal(t, 1000.0, m.Limit)
	assert.GreaterOrEqual(t, m.Seconds, 3.0)
	assert.InDelta(t, float64(m.Dispatched)/m.Seconds, m.Rate, 1)
	require.Len(t, m.Subscriptions, 2)
	return m
}

func TestDemoMeasures(t *testing.T) {
	for name, flags := range brokers(t) {
		t.Run(name, func(t *testing.T) {
			m := measured(t, flags)
			assert.Positive(t, m.MaxWindow)
			assert.Positive(t, m.RequestsPerMessage)
			assert.LessOrEqual(t, float64(m.Dispatched), m.Limit*(m.Seconds+0.25))
			assert.InDelta(t, 1, m.Subscriptions[0].Share+m.Subscriptions[1].Share, 0.002)
		})
	}
}

// TestDemoClients: with --clients, one of the consumer groups reads with franz-go, and without it
// none does.
func TestDemoClients(t *testing.T) {
	const franzGo, kafkaGo = "franz-go", "kafka-go"
	for flag, want := range map[string]map[string]string{
		"--clients=false": {"billing": kafkaGo, "alerts": kafkaGo},
		"--clients":       {"billing": kafkaGo, franzGroup: franzGo},
	} {
		t.Run(flag, func(t *testing.T) {
			broker, err := kfake.NewCluster(kfake.NumBrokers(1))
			require.NoError(t, err)
			defer broker.Close()
			var mu sync.Mutex
			joined := map[string]map[string]bool{} // which clients, by group
			broker.ControlKey(int16(kmsg.JoinGroup), func(request kmsg.Request) (kmsg.Response, error, bool) {
				broker.KeepControl()
				client := kafkaGo
				if request.GetVersion() > 2 { // kafka-go asks in version 1 or 2, franz-go in the newest
					client = franzGo
				}
				id := request.(*kmsg.JoinGroupRequest).Group
				mu.Lock()
				defer mu.Unlock()
				group := id[strings.LastIndex(id, "-")+1:]
				if joined[group] == nil {
					joined[group] = map[string]bool{}
				}
				joined[group][client] = true
				return nil, nil, false
			})
			measured(t, []string{flag, "--kafka", broker.ListenAddrs()[0]})
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, joined, len(want))
			for group, client := range want {
				assert.Equal(t, map[string]bool{client: true}, joined[group], group)
			}
		})
	}
}

// TestDemoConsole: the console shows the demo's topic while it runs.
func TestDemoConsole(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	ended := make(chan int)
	go func() {
		status := cli.Run(ctx, []string{"demo", "--console=127.0.0.1:0", "--plain", "--duration", "1m"}, strings.NewReader(""), out, out, Commands)
		_ = out.Close()
		ended <- status
	}()
	url := ""
	lines := bufio.NewScanner(in)
	for url == "" && lines.Scan() {
		_, url, _ = strings.Cut(lines.Text(), "console: ")
	}
	go func() { _, _ = io.Copy(io.Discard, in) }()
	throttletest.Until(t, "the console knows the topic", func() bool {
		answer, err := http.Get(url + "/api/overview?filter=demo-orders+throttled")
		require.NoError(t, err)
		defer func() { _ = answer.Body.Close() }()
		var o struct{ Rows []struct{ Rate float64 } }
		require.NoError(t, json.NewDecoder(answer.Body).Decode(&o))
		return len(o.Rows) == 1 && o.Rows[0].Rate > 100
	})
	cancel()
	assert.Equal(t, cli.ExitDone, <-ended)
}

func TestAccuracyDemo(t *testing.T) {
	for name, flags := range brokers(t) {
		t.Run(name, func(t *testing.T) {
			accuracy.Measure(t, func(m *accuracy.M) {
				demo := measured(t, flags)
				m.Within("used, %", demo.Rate/10, 90, 108)
				m.AtMost("any second, %", float64(demo.MaxWindow)/10, 111)
				m.Within("share of one of two, %", 100*demo.Subscriptions[0].Share, 45, 55)
				m.AtMost("requests a message", demo.RequestsPerMessage, 0.1)
			})
		})
	}
}

// An observer is the standard output of a command. It calls done when it was written lines that
// match wanted, in this order.
type observer struct {
	out    bytes.Buffer
	wanted []string
	done   func()
}

func (o *observer) Write(line []byte) (int, error) {
	if len(o.wanted) > 0 && regexp.MustCompile(o.wanted[0]).Match(line) {
		if o.wanted = o.wanted[1:]; len(o.wanted) == 0 {
			o.done()
		}
	}
	return o.out.Write(line)
}

// demoUntil runs the command until its output has the wanted lines, and ends it like Ctrl-C. It
// returns the lines that were not in the output, or not in this order.
func demoUntil(t *testing.T, wanted []string, args ...string) (stdout string, missing []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*throttletest.Patience)
	defer cancel()
	o, errs := &observer{wanted: wanted, done: cancel}, new(bytes.Buffer)
	status := cli.Run(ctx, append([]string{"demo"}, args...), strings.NewReader(""), o, errs, Commands)
	assert.Equal(t, cli.ExitDone, status, errs)
	assert.Empty(t, errs.String())
	return o.out.String(), o.wanted
}

func TestDemoShows(t *testing.T) {
	// The lowest limit, so that any machine keeps up with it. After the change, alerts may catch up
	// too soon for a line of that limit in the summary.
	wanted := []string{
		`set-msg-rate kafka://public/default/demo-orders 100/s: revision \d`,
		`limit 100/s \| billing \d+/s \d+ % backlog \d+ throttled \| alerts \d+/s \d+ % backlog \d+ throttled`,
		`set-msg-rate kafka://public/default/demo-orders 200/s: in force everywhere within \d`,
		`\d s  alerts has caught up \(backlog \d+\): not throttled, not charged`,
		`limit 200/s \| billing .* \| alerts \d+/s \d+ % backlog \d+ caught up`,
	}
	out, duration := "", 8*time.Second
	throttletest.Until(t, "the output has all lines in order", func() bool {
		duration *= 2 // a slow machine shows them later
		var missing []string
		out, missing = demoUntil(t, wanted, "--limit", "100", "--duration", duration.String(), "--plain")
		if len(missing) > 0 {
			t.Logf("in %v there is no %s after the lines before it: %s", duration, missing[0], out)
		}
		return len(missing) == 0
	})
	for _, want := range []string{
		`\n  limit 100/s +\d+ messages in +\d`,
		`alerts caught up after \d`,
		`\d+ requests to the permit store`,
	} {
		assert.Regexp(t, want, out)
	}
	assert.NotContains(t, out, "\x1b", "a pipe is not a terminal")
}

// TestDemoEnds: Ctrl-C ends the demo at any moment, without an error.
func TestDemoEnds(t *testing.T) {
	for _, after := range []time.Duration{0, 30 * time.Millisecond} {
		// Without a deadline, as with Ctrl-C: connections keep one of their own, a moment earlier.
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(after, cancel)
		status, _, errs := demoRun(ctx, "demo")
		assert.Equal(t, cli.ExitDone, status, "after %s: %s", after, errs)
		assert.Empty(t, errs)
		cancel()
	}
	out, missing := demoUntil(t, []string{`limit 1000/s \| billing`})
	assert.Empty(t, missing, out)
	assert.Contains(t, out, "Messages that the consumers received")
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
