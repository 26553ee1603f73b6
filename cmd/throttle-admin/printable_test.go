package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/ratekeeper"
	"github.com/dispatchthrottle/throttle/tests/services"
)

// hostile is a name that clears the screen, colours what follows, shows it from right to left and
// starts a line that looks like the program's.
const hostile = "x\x1b[2J\x1b[31m\u202ey\u009b31m\r\nFORGED: all limits are off\a\x00"

// TestHostileNames: whatever others write into the stores, no terminal acts on it.
func TestHostileNames(t *testing.T) {
	ctx := t.Context()
	node, permitsURL, cluster := services.Etcd(t), services.Patient(services.Redis(t)), services.Name(t)
	policiesURL := "etcd://" + node.Endpoint + "/t"
	const topic = "kafka://public/default/orders"
	for key, value := range map[string]string{
		"/t/config/policies/" + hostile: `{"schema":2,"messageRate":"5/s"}`,
		"/t/config/policies/" + url.PathEscape(topic+"?subscription=a%E2%80%AEb%C2%9B"): `{"schema":2,"messageRate":"5/s"}`,
		"/t/config/policies/cluster":          `{"schema":2,"messageRate":` + quoted(t, hostile) + `}`,
		"/t/config/policies/public%2Fdefault": `{"schema":2,` + quoted(t, hostile) + `:1}`,
		"/t/config/quotas/tag:bulk":           `{"schema":2,"total":819200}`,
		"/t/config/quotas/tag:" + hostile:     `{"schema":2,"total":819200}`,
		"/t/config/quotaSettings/cluster":     `{"schema":2,"zones":["` + "a\u202e" + `"]}`,
		"/t/config/marker":                    `{"id":` + quoted(t, hostile) + `,"epoch":1,"count":6}`,
	} {
		_, err := node.Client().Put(ctx, key, value)
		require.NoError(t, err)
	}
	at := `"time":"2026-11-28T12:00:00Z","author":` + quoted(t, hostile+strings.Repeat("a", 10_000)) +
		`,"reason":` + quoted(t, hostile+strings.Repeat("r ", 5_000))
	for serial, record := range []string{
		`{` + at + `,"changes":[{"scope":` + quoted(t, hostile) + `,"field":` + quoted(t, hostile) + `}]}`,
		`{` + at + `,"changes":[{"scope":"cluster","is":{"settings":{"schema":2,` + quoted(t, hostile) + `:1}}}]}`,
		`{` + at + `,"changes":[{"section":` + quoted(t, hostile) + `,"scope":"cluster"}]}`,
		`{` + at + `,"changes":[{"scope":"cluster","is":{"settings":{"schema":2,"messageRate":"1/s"}}}]}`,
		hostile,
	} {
		_, err := node.Client().Put(ctx, fmt.Sprintf("/t/history/changes/%012d-%d-1", serial+1, time.Now().UnixMilli()), record)
		require.NoError(t, err)
	}
	head, err := node.Client().Put(ctx, "/t/history/head", `{"serial":5,"seen":1000,"count":6}`)
	require.NoError(t, err)
	lastRevision := fmt.Sprint((head.Header.Revision - 2) * 1000) // of the last one but one
	permits, err := throttle.OpenPermits(permitsURL)
	require.NoError(t, err)
	defer func() { assert.NoError(t, permits.Close()) }()
	publish := func(cluster, name string, v any) {
		t.Helper()
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, permits.Publish(ctx, cluster, name, text, time.Minute))
	}
	for _, s := range []string{"1", "2"} {
		publish(cluster, hostile+s, dispatch.Stats{
			Replica: hostile + s, Cluster: hostile, Version: hostile, Identity: hostile + s, PolicyError: hostile,
			Subscriptions: []dispatch.SubscriptionStats{{
				Topic: topic, Subscription: hostile, Owner: hostile, Waiting: 1, Reason: dispatch.Reason(hostile),
				Limits: []dispatch.LimitStats{{Key: hostile, Reason: hostile, Group: hostile}},
			}, {Topic: hostile, Subscription: hostile}},
		})
	}
	decision := quota.Decision{
		ID: "tag:bulk", Rate: 1, Cost: 1, AverageCost: 1, Limiting: 1, Busy: true, Backends: 1,
		Zones: []quota.ZoneLimit{{Zone: hostile, Rate: 1}},
	}
	other := decision
	other.ID = hostile
	publish(cluster+"/ratekeeper", hostile, ratekeeper.Status{
		Keeper: hostile, Term: 1, Refused: []string{hostile}, Decisions: []quota.Decision{decision, other},
		Readers: []quota.Reader{{Backend: hostile, Zone: hostile, ID: "tag:bulk", Cost: 1, Busyness: 1, Ratio: 1}},
	})

	admin := func(args ...string) (stdout, stderr string) {
		var out, errs bytes.Buffer
		args = append(args, "--policies", policiesURL, "--permits", permitsURL, "--cluster", cluster)
		run(ctx, args, strings.NewReader(""), &out, &errs)
		return out.String(), errs.String()
	}
	seen := 0
	for _, args := range [][]string{
		{"list"}, {"get", "cluster"}, {"get", topic}, {"get", topic, "--subscription", "a\u202eb\u009b"},
		{"get", hostile}, {"explain", topic}, {"explain", topic, "--subscription", hostile},
		{"explain", "tag:bulk"}, {"explain", "--message", topic, "--tag", "bulk"}, {"doctor"}, {"doctor", "-o", "json"},
		{"top", "--once"}, {"top", "--once", "-o", "json"},
		{"quota", "list"}, {"quota", "status"}, {"quota", "settings"},
		{"quota", "get", "tag:bulk"}, {"set", "public/default", "messageRate=1", "--dry-run"},
		{"set", hostile, "messageRate=1"}, {"set", "cluster", hostile + "=1"}, {"set", topic, "messageRate=" + hostile},
		{"remove", hostile}, {"history"}, {"history", hostile}, {"history", "cluster"}, {"history", "-o", "json"},
		{"history", "show", lastRevision}, {"history", "show", lastRevision, "-o", "yaml"}, {"history", "show", hostile},
		{"history", "diff", lastRevision}, {"rollback", lastRevision, "--dry-run"}, {"rollback", "--to", lastRevision},
		{"set", "public/default", "messageRate=1", "--revision", "1"}, {"reset", "cluster"}, {"reset", hostile, hostile},
		{"adopt", "--dry-run"}, {"adopt", "--dry-run", "--id", hostile},
		{"diff", "-f", hostile}, {"validate", "-f", hostile}, {hostile}, {"list", "--" + hostile}, {"list", hostile},
		{"list", "--output", hostile}, {"simulate", "quota", hostile},
		{"export"}, {"export", "-o", "json"}, {"export", "-o", "yaml"},
	} {
		out, errs := admin(args...)
		require.NotEmpty(t, out+errs, args)
		for _, text := range []string{out, errs} {
			for line := range strings.Lines(text) {
				line = strings.TrimSuffix(line, "\n")
				assert.False(t, strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsPrint(r) }), "%q: %q", args, line)
				assert.False(t, strings.HasPrefix(line, "FORGED") || strings.HasPrefix(line, "throttle-admin: FORGED"),
					"%q: %q", args, text)
				if strings.Contains(line, "FORGED") {
					seen++
				}
			}
		}
	}
	t.Logf("%d lines with the name, escaped", seen)
	list, _ := admin("list")
	assert.Contains(t, list, `x\x1b[2J\x1b[31m\u202ey\u009b31m\r\nFORGED`)
	assert.Greater(t, seen, 20)

	shown, _ := admin("history", "show", lastRevision)
	assert.Contains(t, shown, strings.Repeat("a", 90), "the author of a record is shown, as far as a store takes one")
	assert.Less(t, len(shown), 3*configstore.MaxReason)

	// JSON is exact, and printable as well.
	out, _ := admin("quota", "status", "-o", "json")
	assert.False(t, strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }), "%q", out)
	var s ratekeeper.Status
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	assert.Equal(t, hostile, s.Keeper)
	assert.Equal(t, quota.ID(hostile), s.Decisions[1].ID)

	// So is a file of exported policies.
	exported, _ := admin("export")
	var stdout, stderr bytes.Buffer
	status := run(ctx, []string{"validate", "-", "-o", "json"}, strings.NewReader(exported), &stdout, &stderr)
	assert.Zero(t, status, "%s", stderr.String())
	assert.Contains(t, exported, `"subscription": "a\u202eb\u009b"`)
}

func quoted(t *testing.T, s string) string {
	text, err := json.Marshal(s)
	require.NoError(t, err)
	return string(text)
}
