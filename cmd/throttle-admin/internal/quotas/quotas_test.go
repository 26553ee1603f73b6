package quotas

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/explain"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotastate"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// families have the commands that show quotas.
var families = []cli.Family{Commands, explain.Commands, policies.Commands}

// TestQuotasLive has a ratekeeper compute the rate of a tag from the reports of a replica and a
// backend, and explains it.
func TestQuotasLive(t *testing.T) {
	q := &liveQuotas{
		t: t, store: "file:" + t.TempDir() + "/policies.yaml", permits: services.Patient(services.Redis(t)),
		cluster: services.Name(t), tokens: t.TempDir() + "/token",
	}
	require.NoError(t, os.WriteFile(q.tokens, []byte("db: "+token+"\n# archive: of this line\n"), 0o600))
	q.done("quota", "set", "tag:bulk", "total=800KiB", "reserved=40KiB")
	q.done("quota", "set", "tenant:acme", "total=8MiB")
	q.done("quota", "settings", "zones=a,b", "ignoreZones=0", "capacity=40KiB")
	q.refusesFlags()
	stop := q.start()
	q.acceptsReports()
	q.refusesReports()
	q.decides()
	q.explainsTheTag()
	q.explainsTheTopic()
	q.warnsOfTheCapacity()
	q.pauses()
	q.hasMetrics()
	stop()
	assert.Contains(t, q.log.String(), `msg=GotRate id=tag:bulk`)
	assert.Contains(t, q.log.String(), `msg=BusyReader backend=db zone=b id=tag:bulk`)
	assert.NotContains(t, q.log.String(), "sesame")
	status, _, errs := q.admin("explain", "tag:nobody")
	assert.Equal(t, cli.ExitFailed, status)
	assert.Contains(t, errs, `id "tag:nobody": has no quota`)
}

const orders, token = "kafka://acme/default/orders", "open-sesame-1234"

// liveQuotas are the quotas of a cluster with a ratekeeper, a replica and a backend.
type liveQuotas struct {
	t                               *testing.T
	store, permits, cluster, tokens string
	log                             throttletest.Log // of the ratekeeper
	address                         string           // at which it takes reports
}

func (q *liveQuotas) args(more ...string) []string {
	return append([]string{"--policies", q.store, "--permits", q.permits, "--cluster", q.cluster}, more...)
}

func (q *liveQuotas) admin(args ...string) (status int, out, errs string) {
	status, out, errs = clitest.Run(q.t.Context(), families, q.args(args...)...)
	for line := range strings.Lines(out) {
		assert.True(q.t, args[len(args)-1] == "json" || len(line) <= output.MaxWidth+1, line)
	}
	return status, out, errs
}

func (q *liveQuotas) done(args ...string) string {
	status, out, errs := q.admin(args...)
	require.Zero(q.t, status, errs)
	return out
}

func (q *liveQuotas) refusesFlags() {
	short := q.t.TempDir() + "/short"
	require.NoError(q.t, os.WriteFile(short, []byte("db: short\n"), 0o600))
	status, _, errs := q.admin("quota", "status")
	assert.Equal(q.t, cli.ExitFailed, status)
	const hint = "\nhint: start one: throttle-admin ratekeeper, or "
	assert.Regexp(q.t, "no ratekeeper leads in cluster .*"+hint, errs)
	status, _, errs = q.admin("ratekeeper", "--listen", "127.0.0.1:0", "--tokens", short)
	assert.Equal(q.t, cli.ExitUsage, status)
	assert.Contains(q.t, errs, "line 1: invalid token: want 16 characters or more")
	assert.NotContains(q.t, errs, "short\n\"")
	status, _, errs = q.admin("ratekeeper", "--listen", "127.0.0.1:0")
	assert.Equal(q.t, cli.ExitUsage, status)
	assert.Contains(q.t, errs, "--listen, --tokens: one is missing: want both flags")
	status, _, errs = q.admin("ratekeeper", "--max-ids", "0")
	assert.Equal(q.t, cli.ExitUsage, status)
	assert.Contains(q.t, errs, "--max-ids 0: invalid number: want 1 or more")
	status, _, errs = q.admin("ratekeeper", "--listen", "127.0.0.1:99999", "--tokens", q.tokens)
	assert.Equal(q.t, cli.ExitFailed, status)
	assert.Contains(q.t, errs, "listen: ")
}

// start starts the ratekeeper, and a replica with two subscriptions: one is charged to a tag, the
// other to the tenant.
func (q *liveQuotas) start() (stop func()) {
	ctx, end := context.WithCancel(q.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		args := q.args("ratekeeper", "--name", "keeper-1", "--listen", "127.0.0.1:0", "--tokens", q.tokens)
		assert.Zero(q.t, cli.Run(ctx, args, strings.NewReader(""), io.Discard, &q.log, Commands), &q.log)
	})
	stop = func() { end(); running.Wait() }
	q.t.Cleanup(stop)
	serving := regexp.MustCompile(`serving (http://[\d.:]+)/reports`)
	throttletest.Until(q.t, "the ratekeeper serves", func() bool { return serving.MatchString(q.log.String()) })
	q.address = serving.FindStringSubmatch(q.log.String())[1]

	lim, err := throttle.Open(q.t.Context(), q.store, q.permits,
		throttle.WithCluster(q.cluster), throttle.WithReplica("replica-a"))
	require.NoError(q.t, err)
	q.t.Cleanup(func() { stop(); assert.NoError(q.t, lim.Close()) })
	bulk, err := lim.Subscription(orders, "billing", dispatch.WithTag("bulk"))
	require.NoError(q.t, err)
	_, err = lim.Subscription(orders, "audit")
	require.NoError(q.t, err)
	broker, err := lim.Backend("broker-1", "a")
	require.NoError(q.t, err)
	running.Go(func() {
		for {
			if _, err := bulk.Acquire(ctx, 1); err != nil {
				return
			}
			broker.Read(bulk, 3*quota.Page) // 66 a second
		}
	})
	return stop
}

func (q *liveQuotas) ask(method, path, token, body string) (int, string) {
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(q.t.Context(), method, q.address+path, strings.NewReader(body))
	require.NoError(q.t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	got, err := client.Do(req)
	require.NoError(q.t, err)
	text, err := io.ReadAll(got.Body)
	require.NoError(q.t, err)
	require.NoError(q.t, got.Body.Close())
	return got.StatusCode, string(text)
}

// report is of a backend, whose clock may be ahead.
func report(ahead float64, zone string, queue int) string {
	return fmt.Sprintf(`{"backend":"db","zone":%q,`+
		`"load":{"queue":%d,"target":800,"spring":200},`+
		`"costs":{"tag:bulk":409600,"tag:nobody":4096},"time":%.3f}`,
		zone, queue, float64(time.Now().UnixMilli())/1000+ahead)
}

func (q *liveQuotas) acceptsReports() {
	throttletest.Until(q.t, "the ratekeeper accepts a report", func() bool {
		status, text := q.ask(http.MethodPost, "/reports", token, report(0, "b", 0))
		return status == http.StatusOK && assert.JSONEq(q.t, `{"withoutQuota":["tag:nobody"]}`, text)
	})
}

func (q *liveQuotas) refusesReports() {
	for _, c := range []struct {
		token, body string
		status      int
		want        string
	}{
		{"", report(0, "b", 0), http.StatusUnauthorized, "wrong token"},
		{token + "5", report(0, "b", 0), http.StatusUnauthorized, "wrong token"},
		{token, strings.Replace(report(0, "b", 0), `"db"`, `"archive"`, 1), http.StatusForbidden,
			`backend "archive": the token is that of backend "db"`},
		{token, "{", http.StatusBadRequest, "want one report as JSON"},
		{token, report(60, "c", -1), http.StatusBadRequest,
			"queue -1: is invalid: want 0 or more\n" +
				"zone \"c\": is not declared by the cluster: use one of [\"a\" \"b\"]\ntime "},
		{token, `{"speed":1}`, http.StatusBadRequest, `unknown field "speed"`},
		{token, `{"backend":"` + strings.Repeat("x", 5<<20), http.StatusRequestEntityTooLarge,
			"too large"},
	} {
		status, text := q.ask(http.MethodPost, "/reports", c.token, c.body)
		assert.Equal(q.t, c.status, status, text)
		assert.Contains(q.t, text, c.want)
		assert.NotContains(q.t, text, "sesame")
	}
	status, _ := q.ask(http.MethodGet, "/reports", token, "")
	assert.Equal(q.t, http.StatusMethodNotAllowed, status)
	status, _ = q.ask(http.MethodGet, "/nowhere", token, "")
	assert.Equal(q.t, http.StatusNotFound, status)
}

// decision is that of the tag.
func (q *liveQuotas) decision() (d quota.Decision) {
	var s statusView
	require.NoError(q.t, json.Unmarshal([]byte(q.done("quota", "status", "-o", "json")), &s))
	assert.True(q.t, s.Leads)
	assert.Equal(q.t, "keeper-1", s.Keeper)
	for _, d := range s.Decisions {
		if d.ID == "tag:bulk" {
			return d
		}
	}
	return d
}

func (q *liveQuotas) decides() {
	var d quota.Decision
	throttletest.Until(q.t, "the second backend slows the tag down", func() bool {
		_, _ = q.ask(http.MethodPost, "/reports", token, report(0, "b", 1000)) // its target is 800
		d = q.decision()
		return d.Backends == 2 && d.Busy && d.Rate > 1
	})
	assert.InDelta(q.t, d.Quota.Total/d.AverageCost, d.Desired, 1e-6)
	assert.Less(q.t, d.Limiting, d.Desired)

	out := q.done("quota", "status")
	q.t.Log("\n" + out)
	assert.Regexp(q.t, `ratekeeper keeper-1, term \d+; 2 replicas and backends report, 3 ids`, out)
	assert.Regexp(q.t, `(?m)^ID +RATE +AVERAGE +RESERVED +DESIRED +LIMITING +TARGET +IN FORCE\n`, out)
	assert.Regexp(q.t, `(?m)^tag:bulk +[\d.]+ +\d+ .* busy$`, out)
	assert.Regexp(q.t, `(?m)^tenant:acme +0 +16384 +0 +512 +- +512 +512$`, out)
}

func (q *liveQuotas) explainsTheTag() {
	out := q.done("explain", "tag:bulk")
	q.t.Log("\n" + out)
	for _, want := range []string{
		`^tag:bulk, cluster ` + q.cluster + `, by ratekeeper keeper-1 in term \d+\n`,
		`quota +reserved 40960, total 819200 bytes of cost a second`,
		`cost +\d+ bytes a second on 2 backends, \d+ a message on average`,
		`desired +819200 / \d+ = [\d.]+/s`,
		`limiting +zones: b [\d.]+/s; without the worst 0: [\d.]+`,
		`target +max\([\d.]+, min\([\d.]+, [\d.]+\)\) = [\d.]+/s`,
		`in force +[\d.]+/s, smoothed`,
		`backend db in zone b: 409600 bytes of cost a second, which is 99 % of its load; it can`,
		`- Limited (by backends|to what it reserves)`,
	} {
		assert.Regexp(q.t, want, out)
	}
	var x struct {
		ID       string
		Decision quota.Decision
		Readers  []quota.Reader
		Why      []string
	}
	require.NoError(q.t, json.Unmarshal([]byte(q.done("explain", "tag:bulk", "-o", "json")), &x))
	assert.Equal(q.t, "tag:bulk", x.ID)
	assert.Len(q.t, x.Readers, 1)
	assert.Positive(q.t, x.Decision.Rate)
	assert.NotEmpty(q.t, x.Why)
}

// explainsTheTopic: explain shows both quotas, and which one throttles whom.
func (q *liveQuotas) explainsTheTopic() {
	var explained struct {
		Limits []struct {
			Scope         string
			Rate, InForce float64
		}
		Why []string
	}
	throttletest.Until(q.t, "billing is throttled by a quota", func() bool {
		_, _ = q.ask(http.MethodPost, "/reports", token, report(0, "b", 1000))
		require.NoError(q.t, json.Unmarshal([]byte(q.done("explain", orders, "-o", "json")), &explained))
		throttled := "billing (tag:bulk) in replica-a is throttled by a throughput quota, "
		return strings.Contains(strings.Join(explained.Why, "\n"), throttled)
	})
	require.Len(q.t, explained.Limits, 2)
	assert.Equal(q.t, "tenant:acme", explained.Limits[0].Scope)
	assert.InDelta(q.t, 512, explained.Limits[0].Rate, 1e-6)
	assert.Zero(q.t, explained.Limits[0].InForce, "it has no consumers")
	assert.Equal(q.t, "tag:bulk", explained.Limits[1].Scope)
	assert.Positive(q.t, explained.Limits[1].Rate)
	assert.Positive(q.t, explained.Limits[1].InForce)
	out := q.done("explain", orders)
	q.t.Log("\n" + out)
	assert.Regexp(q.t, `(?m)^quota of tag:bulk +[\d.]+/s +enforce +[\d.]+/s`, out)
	assert.Regexp(q.t, `(?m)^quota of tenant:acme +512/s +enforce +no consumers`, out)
	assert.Regexp(q.t, `(?m)^billing \(tag:bulk\) +replica-a `, out)
}

// warnsOfTheCapacity: a reservation may be above a capacity that expires.
func (q *liveQuotas) warnsOfTheCapacity() {
	q.done("quota", "settings", "capacity=1MiB", "--for", "1h")
	q.done("quota", "set", "tenant:acme", "reserved=4096")
	status, _, errs := q.admin("quota", "status")
	assert.Zero(q.t, status)
	assert.Regexp(q.t, `^throttle-admin: from .* \(in 1h\), when a temporary value expires, quotas `+
		`together reserve 45056 `, errs)

	status, out, errs := q.admin("quota", "status", "--policies", "memory:")
	assert.Zero(q.t, status)
	assert.Contains(q.t, out, "ratekeeper keeper-1")
	assert.Contains(q.t, errs, "quotas were not compared with the capacity: --policies memory:")
}

// pauses: a quota of 0 does.
func (q *liveQuotas) pauses() {
	q.done("quota", "set", "tag:bulk", "total=0", "reserved=0")
	throttletest.Until(q.t, "the topic is paused", func() bool {
		why := q.done("explain", orders)
		paused := "- billing (tag:bulk) in replica-a is paused: the total of tag:bulk is 0.\n"
		return strings.Contains(why, paused)
	})
	throttletest.Until(q.t, "the tag is paused", func() bool {
		return strings.Contains(q.done("explain", "tag:bulk"), "- Paused: its total is 0.")
	})
}

func (q *liveQuotas) hasMetrics() {
	status, text := q.ask(http.MethodGet, "/metrics", "", "")
	assert.Equal(q.t, http.StatusOK, status)
	for _, name := range []string{
		"throttle_ratekeeper_term ",
		`throttle_quota_messages_per_second{id="tag:bulk"} `,
		`throttle_quota_messages_per_second{id="tenant:acme"} `,
	} {
		assert.Contains(q.t, text, "\n"+name)
	}
}

// TestQuotasUnkept shows the rates that apply while no ratekeeper leads, by what the last one
// wrote.
func TestQuotasUnkept(t *testing.T) {
	store := "file:" + t.TempDir() + "/policies.yaml"
	address, cluster := services.Patient(services.Redis(t)), services.Name(t)
	admin := func(args ...string) (status int, out, errs string) {
		args = append(args, "--permits", address, "--cluster", cluster)
		return clitest.Run(t.Context(), families, args...)
	}
	for id, q := range map[string][]string{
		"tag:bulk": {"total=409600"},
		"tag:gold": {"total=409600", "reserved=40960"},
		"tag:new":  {"total=163840"}, "tag:off": {"total=0"},
	} {
		status, _, errs := admin(append([]string{"quota", "set", id, "--policies", store}, q...)...)
		require.Zero(t, status, errs)
	}
	status, _, errs := admin(
		"quota", "set", "tag:test", "total=4096", "mode=shadow", "--policies", store)
	require.Zero(t, status, errs)

	live, err := throttle.OpenPermits(address)
	require.NoError(t, err)
	defer func() { assert.NoError(t, live.Close()) }()
	write := func(head func(now float64) []byte, rows map[string][]byte) {
		key, text := permits.RatesKey(cluster), []byte(nil)
		update := func(_ []byte, now float64) []byte { text = head(now); return text }
		require.NoError(t, live.Update(t.Context(), key, time.Minute, update))
		done, err := live.SetRows(t.Context(), key, text, time.Minute, rows)
		require.NoError(t, err)
		require.True(t, done)
	}
	found := func(age float64) {
		write(func(now float64) []byte {
			text, err := json.Marshal(quota.Rates{Term: 7, Keeper: "k-1", Time: now - age})
			require.NoError(t, err)
			return text
		}, map[string][]byte{
			"tag:bulk": []byte(`{"rate":40,"average":8192}`),
			"tag:gold": []byte(`{"rate":20,"average":4096}`),
			"tag:off":  []byte(`{"rate":3,"average":4096}`),
		})
	}
	const fallback = "each id's reservation or, without one, its total"
	assumed := []string{ // at the cost of a written page
		"tag:bulk 16384 25 total", "tag:gold 16384 2.5 reserved", "tag:new 16384 10 total",
		"tag:off 16384 0 total", "tag:test 16384 unlimited shadow",
	}
	for _, c := range []unkept{
		{"none", func() {}, 0, false,
			"no rates were written in the last hour. In force is " + fallback,
			assumed, "25/s, the total"},
		{"fresh", func() { found(20) }, 20 * time.Second, true,
			"k-1 wrote the last rates in term 7, (\\S+) ago; they stay in force for (\\S+) more. " +
				"After that, " + fallback,
			[]string{
				"tag:bulk 8192 40 rate", "tag:gold 4096 20 rate", "tag:new 16384 10 total",
				"tag:off 4096 0 total", "tag:test 16384 unlimited shadow",
			}, "40/s, the ratekeeper's last rate"},
		{"old", func() { found(200) }, 200 * time.Second, false,
			"k-1 wrote the last rates in term 7, (\\S+) ago; they have expired. In force is " + fallback,
			[]string{
				"tag:bulk 8192 50 total", "tag:gold 4096 10 reserved", "tag:new 16384 10 total",
				"tag:off 4096 0 total", "tag:test 16384 unlimited shadow",
			}, "50/s, the total"},
		{"nonsense", func() { write(func(float64) []byte { return []byte("{") }, nil) }, 0, false,
			"no rates were written", assumed, "25/s, the total"},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, admin, cluster, store) })
	}
}

// An unkept is what commands show while no ratekeeper leads.
type unkept struct {
	name   string
	before func()
	age    time.Duration // of the rates, after before
	hold   bool
	text   string   // with the age and, if they are held, for how long they still are
	ids    []string // id, average cost, in force, origin
	bulk   string   // in explain
}

func (c *unkept) check(
	t *testing.T, admin func(args ...string) (status int, out, errs string), cluster, store string,
) {
	const rounding = 100 * time.Millisecond // of durations in the text
	start := time.Now()
	c.before()
	const noRatekeeper, hint = "no ratekeeper leads in cluster ", "\nhint: start one: "
	status, out, errs := admin("quota", "status", "--policies", store)
	assert.Equal(t, cli.ExitFailed, status)
	assert.Contains(t, errs, noRatekeeper+cluster+hint)
	invalid := strings.Contains(errs, "are invalid and ignored")
	assert.Equal(t, c.name == "nonsense", invalid, errs)
	text, table, _ := strings.Cut(out, "\n\n")
	text = strings.Join(strings.Fields(text), " ")
	told := regexp.MustCompile("^" + noRatekeeper + cluster + ".*" + c.text).FindStringSubmatch(text)
	require.NotNil(t, told, text)
	if c.age > 0 {
		age, err := time.ParseDuration(told[1])
		require.NoError(t, err)
		assert.GreaterOrEqual(t, age, c.age)
		assert.LessOrEqual(t, age, c.age+time.Since(start)+rounding)
		if c.hold {
			left, err := time.ParseDuration(told[2])
			require.NoError(t, err)
			assert.InDelta(t, quota.RatesHold, age+left, float64(rounding))
		}
	}
	var ids []string
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		ids = append(ids, strings.Join(append(f[:1:1], f[3:]...), " "))
	}
	assert.Equal(t, c.ids, ids[1:])

	status, out, errs = admin("quota", "status", "--policies", store, "-o", "json")
	assert.Equal(t, cli.ExitFailed, status, errs)
	var u quotastate.Unkept
	require.NoError(t, json.Unmarshal([]byte(out), &u))
	assert.Contains(t, out, `"leads": false`)
	assert.Equal(t, c.hold, u.Hold)
	require.Len(t, u.IDs, 5)
	assert.Nil(t, u.IDs[4].InForce)

	status, out, errs = admin("explain", "tag:bulk", "--policies", store)
	assert.Equal(t, cli.ExitFailed, status)
	assert.Contains(t, errs, hint)
	assert.Regexp(t, `(?m)^in force +`+c.bulk+`$`, out)
	status, out, _ = admin("explain", "tag:bulk", "--policies", store, "-o", "json")
	assert.Equal(t, cli.ExitFailed, status)
	var one quotastate.Unkept
	require.NoError(t, json.Unmarshal([]byte(out), &one))
	assert.Equal(t, u.IDs[:1], one.IDs)

	status, out, errs = admin("quota", "status", "--policies", "")
	assert.Equal(t, cli.ExitFailed, status)
	assert.Regexp(t, c.text, strings.Join(strings.Fields(out), " "))
	assert.Contains(t, errs, "set --policies to see them")
}

// TestQuotaTablesFit whatever the names are.
func TestQuotaTablesFit(t *testing.T) {
	long := strings.Repeat("long-name-", 25)
	d := quota.Decision{
		ID: quota.ID("tag:" + long), Quota: quota.Quota{Reserved: 1 << 53, Total: 1 << 53},
		Limiting: 1e15, Busy: true,
	}
	var out strings.Builder
	statusTable(&out, ratekeeper.Status{
		Keeper: long, Decisions: []quota.Decision{d}, Refused: []string{"report of " + long},
		LeftOut: 1 << 50,
	})
	rate := quotastate.Rate{
		ID: string(d.ID), Reserved: 1 << 53, Total: 1 << 53, AverageCost: 1 << 53,
		InForce: new(1e15), By: "reserved",
	}
	u := quotastate.Unkept{Cluster: long, Keeper: long, IDs: []quotastate.Rate{rate}}
	u.Write(&out)
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, len(line), output.MaxWidth+1, line)
	}
	assert.Contains(t, out.String(), "are not tracked")
}
