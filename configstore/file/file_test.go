package file_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/renameio/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/configstore/file"
	"github.com/dispatchthrottle/throttle/configstore/storetest"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestMain(m *testing.M) { throttletest.Main(m, goleak.Find) }

func open(t *testing.T, path string) *file.Store {
	s, err := file.OpenOrCreate(path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// write makes permanent changes as an editor does.
func write(t *testing.T, path string, changes []configstore.Change) {
	var entries []policy.Entry
	if data, err := os.ReadFile(path); err == nil {
		entries, err = file.Parse(path, data)
		require.NoError(t, err)
	}
	for _, c := range changes {
		entries = slices.DeleteFunc(entries, func(e policy.Entry) bool { return configstore.KeyOf(e) == c.Key })
		if !c.Deletes() {
			entries = append(entries, c.Entry(time.Time{}, 0))
		}
	}
	format := file.Format
	if filepath.Ext(path) == ".json" {
		format = file.FormatJSON
	}
	data, err := format(entries)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path+".new", data, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func TestStore(t *testing.T) {
	for _, name := range []string{"policies.yaml", "policies.json"} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) storetest.Backend {
				path := filepath.Join(t.TempDir(), name)
				return storetest.Backend{
					Open: func(t *testing.T) configstore.Store { return open(t, path) },
					Corrupt: func(t *testing.T) { // atomically, since an empty file is a fault, too
						require.NoError(t, os.WriteFile(path+".new", []byte("schema: 2\npolicies: 5\n"), 0o600))
						require.NoError(t, os.Rename(path+".new", path))
					},
					Write: func(t *testing.T, changes []configstore.Change) { write(t, path, changes) },
					Damage: func(t *testing.T) {
						require.NoError(t, os.Remove(path+".history"))
						require.NoError(t, os.Mkdir(path+".history", 0o755))
					},
					Plain: true, Most: 1500,
				}
			})
		})
	}
}

// TestFileOfEarlierVersions: a marker, which files had, has no effect, and Apply leaves it out.
func TestFileOfEarlierVersions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	text := "schema: 2\nmarker: {id: old, epoch: 4, count: 5}\npolicies: []\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	s := open(t, path)
	list, err := s.List(t.Context())
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, configstore.Marker{ID: "file", Epoch: info.ModTime().UnixMilli()}, list.Marker)
	_, err = s.Adopt(t.Context(), configstore.Adoption{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = s.Apply(t.Context(), configstore.Commit{Changes: []configstore.Change{{Settings: policy.Policy{Burst: new(int64(1))}}}})
	require.NoError(t, err)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "schema: 2\npolicies:\n  - scope: cluster\n    burst: 1\n", string(after))
}

// TestFileAhead: a file whose time is over a day ahead does not outlast the policies of others.
func TestFileAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	for ahead, epoch := range map[time.Duration]bool{time.Hour: true, 25 * time.Hour: false} {
		require.NoError(t, os.WriteFile(path, []byte("schema: 2\npolicies: []\n"), 0o600))
		then := time.Now().Add(ahead)
		require.NoError(t, os.Chtimes(path, then, then))
		list, err := open(t, path).List(t.Context())
		require.NoError(t, err)
		assert.Equal(t, epoch, list.Marker.Epoch > 0, ahead)
		assert.Equal(t, then.UnixMilli(), list.Revision)
	}
}

// TestCreate: a program that may create its file begins with none, and leaves an existing one.
func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	s := open(t, path)
	require.NoError(t, s.Create(t.Context()))
	list, err := s.List(t.Context())
	require.NoError(t, err)
	assert.Empty(t, list.Entries)
	assert.InDelta(t, time.Now().UnixMilli(), list.Marker.Epoch, 60_000)
	require.NoError(t, s.Create(t.Context()))
	require.NoError(t, open(t, path).Create(t.Context()))
	again, err := s.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, list, again)

	strict, err := file.Open(filepath.Join(t.TempDir(), "missing.yaml"))
	require.NoError(t, err)
	require.NoError(t, strict.Create(t.Context()), "does nothing")
	_, err = strict.List(t.Context())
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// someTime is before what expires in the files of these tests.
var someTime = time.Date(2039, 6, 1, 0, 0, 0, 0, time.UTC)

func TestParse(t *testing.T) {
	now := someTime
	entries, err := file.ParseAt("p.yaml", []byte(`# comment
schema: 2
policies:
  - scope: cluster
    messageRate: 1000
  - scope: kafka://public/default/orders
    subscription: billing
    messageRate: 10000/1m
    byteRate: 1MiB/s
    burst: 5
    round: 50ms
    paused: false
    mode: shadow
    onOutage: stop
    sharing: {mode: fair, groups: [eu, "1"], keepBack: 0.5}
    ramp:
      from: 100
      over: 1m
    busy:
      outcomes:
      - busy
      - timeout
    caughtUp: {throttle: True}
  - {scope: public/default, burst: 1, ramp: {over: 1m}, expires: 2040-01-02T15:04:05Z}
quotas:
  - {scope: "tenant:acme", total: 1MiB, reserved: 4096}
  - {scope: "tag:bulk", total: 0, expires: 2040-01-02T15:04:05Z}
quotaSettings: {capacity: 8192, zones: [a, b]}
`), now)
	require.NoError(t, err)
	require.Len(t, entries, 7)
	assert.Equal(t, policy.Policy{MessageRate: policy.PerSecond(1000)}, entries[0].Settings)
	assert.Equal(t, "burst", entries[1].Field)
	assert.Equal(t, policy.Policy{Ramp: policy.Ramp{Over: policy.Duration(time.Minute)}}, entries[2].Settings)
	assert.Equal(t, "ramp.over", entries[2].Field)
	assert.Equal(t, "kafka://public/default/orders?subscription=billing", entries[3].Scope.String())
	billing := entries[3].Policy()
	assert.Equal(t, policy.PerSecond(1<<20), billing.ByteRate)
	assert.Equal(t, policy.Sharing{Mode: policy.Fair, Groups: []string{"eu", "1"}, KeepBack: new(0.5)}, billing.Sharing)
	assert.Equal(t, policy.Ramp{From: policy.PerSecond(100), Over: policy.Duration(time.Minute)}, billing.Ramp)
	assert.Equal(t, policy.Busy{Outcomes: []string{"busy", "timeout"}}, billing.Busy)
	assert.Equal(t, policy.CaughtUp{Throttle: new(true)}, billing.CaughtUp)
	assert.Equal(t, policy.Quota{Total: new(int64(1 << 20)), Reserved: new(int64(4096))}, entries[4].Settings)
	assert.Equal(t, configstore.Key{Section: policy.QuotaSection, Scope: policy.TagScope("bulk"), Field: "total"},
		configstore.KeyOf(entries[5]))
	assert.Equal(t, policy.QuotaSettings{Capacity: new(int64(8192)), Zones: []string{"a", "b"}}, entries[6].Settings)

	for name, format := range map[string]func([]policy.Entry) ([]byte, error){
		"yaml": file.Format,
		"json": file.FormatJSON,
	} {
		data, err := format(entries)
		require.NoError(t, err)
		again, err := file.ParseAt(name, data, now)
		require.NoError(t, err, "%s", data)
		assert.Equal(t, entries, again)
	}
}

func TestFormatKeepsNamesText(t *testing.T) {
	names := []string{
		"billing", "a.b-c:d", "12", "1e3", "0x10", "1_000", "190:20:30", "2026-01-02", ".inf", "-", "~", "y", "No",
		"ON", "null", "True", "it's", "a: b", "a #b", "x:",
	}
	var entries []policy.Entry
	for _, name := range names {
		entries = append(entries, policy.Entry{
			Scope: storetest.Orders.WithSubscription(name), Settings: policy.Policy{MessageRate: policy.PerSecond(0)},
		})
	}
	entries = append(entries, policy.Entry{
		Scope: policy.NamespaceScope("1", "", "2"), Settings: policy.Policy{Round: policy.Duration(time.Second)},
	})
	data, err := file.Format(entries)
	require.NoError(t, err)
	plain := regexp.MustCompile(`(?m)^    subscription: ([^"].*)$`)
	var unquoted []string
	for _, found := range plain.FindAllStringSubmatch(string(data), -1) {
		unquoted = append(unquoted, found[1])
	}
	assert.Equal(t, []string{"a.b-c:d", "billing"}, unquoted)
	assert.Contains(t, string(data), "scope: \"1/2\"\n    round: 1s\n")
	assert.Contains(t, string(data), "messageRate: 0\n")
	again, err := file.Parse("p", data)
	require.NoError(t, err)
	assert.Len(t, again, len(entries))
}

func TestParseBlocksOfText(t *testing.T) {
	text := "schema: 2\npolicies:\n- scope: >-\n    kafka://a/b/c\n" +
		"  subscription: |-\n    d\n  messageRate: |-\n    5\n"
	entries, err := file.Parse("p", []byte(text))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	assert.Equal(t, "kafka://a/b/c?subscription=d", entries[0].Scope.String())
	assert.Equal(t, policy.PerSecond(5), entries[0].Policy().MessageRate)
}

func TestParseFaults(t *testing.T) {
	type fault struct {
		text string
		want []string // the place and the field of each
	}
	faults := []fault{
		{"", []string{"p:0 "}},
		{strings.Repeat("x", 1<<20+1), []string{"p:0 "}},
		{"schema: 3\npolicies: []", []string{"p:1 "}},
		{"schema: 1\npolicies: []", []string{"p:1 "}},
		{"policies: []", []string{"p:1 schema"}},
		{"schema: 2\nrules: []", []string{"p:2 rules"}},
		{"schema: 2", []string{"p:1 policies"}},
		{"schema: 2\nmarker: {id: a}\npolicies:", []string{"p:3 policies"}},
		{"schema: 2\npolicies:\n  - scope: cluster", []string{"p:1 policies"}},
		{"schema: 2\npolicies: {a: 1}", []string{"p:2 "}},
		{"schema: 2\npolicies:\n  - 5", []string{"p:3 "}},
		{"schema: 2\nschema: 2", []string{"p:2 "}},
		{"schema: 2\npolicies: []\n---\nschema: 2", []string{"p:4 "}},
		{"schema: [", []string{"p:1 "}},
	}
	for _, policies := range []fault{ // from line 3 on
		{"- burst: 1", []string{"p:3 scope"}},
		{"- scope: cluster\n  rate: 5\n  messageRate: -1\n  burst: many\n  mode: off\n" +
			"- scope: x", []string{
			"p:5 messageRate", "p:4 rate", "p:6 burst", "p:7 mode", "p:8 scope",
		}},
		{"- scope: cluster\n  burst: -1\n  priority: 3\n", []string{"p:4 burst", "p:5 priority"}},
		{"- scope: a/b\n  burst: 1\n- scope: a/b\n  burst: 2\n", []string{"p:5 scope"}},
		{"- scope: pattern:a\n  burst: 1\n- scope: pattern:b\n  burst: 2\n", []string{"p:5 "}},
		{"- scope: a/b\n  subscription: c\n  burst: 2\n", []string{"p:4 subscription"}},
		{"- scope: a/b\n  subscription: \"\"\n  burst: 2\n", []string{"p:4 subscription"}},
		{"- scope: pattern:a\n  subscription: c\n  priority: 2\n", []string{"p:4 subscription"}},
		{"- scope: kafka://a/b/c?subscription=d\n  subscription: e\n  burst: 2\n", []string{
			"p:4 subscription",
		}},
		{"- scope: a/b\n  burst: .nan\n  messageRate: .inf\n", []string{"p:4 burst", "p:5 messageRate"}},
		{"- scope: kafka://a/b/c\n  subscription:\n  burst: ~\n  mode: null\n", []string{
			"p:4 subscription", "p:5 burst", "p:6 mode",
		}},
		{"- scope:\n  priority: 1\n  expires: ~\n", []string{"p:3 scope", "p:5 expires"}},
		{"- scope: kafka://a/b/c\n  burst: 1\n  subscription: |\n    d\n", []string{
			"p:5 subscription",
		}}, // a line break
		{"- scope: pattern:a\n  burst: 1\n- scope: pattern:b\n  burst: 2\n- scope: pattern:cc\n" +
			"  burst: 1\n- scope: pattern:dd\n  burst: 2\n", []string{"p:5 ", "p:9 "}},
		{"- scope: a/b\n  burst: 1\n  expires: 2001-01-02T15:04:05Z\n- scope: a/c\n  burst: 1\n" +
			"  expires: 9001-01-02T15:04:05Z\n- scope: a/d\n  expires: tomorrow\n", []string{
			"p:5 expires", "p:8 expires", "p:10 expires",
		}},
		{"- scope: kafka://a/b\n  subscription: \"\"\n  burst: 1\n", []string{
			"p:3 topic", "p:4 subscription",
		}},
		{"- scope: a/b\n  burst: [1]\n  round: &x 1s\n", []string{"p:4 burst", "p:5 round"}},
		{"- scope: a/b\n  burst: 1\n  burst: 2\n", []string{"p:5 "}},
		{"- scope: a/b\n  ramp: 1m\n  sharing: {mode: [fair], groups: [{a: b}], x: 1}\n" +
			"  ramp.over: 1m\n  caughtUp: {backlog: -1}\n", []string{
			"p:4 ramp", "p:5 sharing.mode", "p:5 sharing.groups", "p:5 sharing.x", "p:6 ramp.over",
			"p:7 caughtUp.backlog",
		}},
	} {
		faults = append(faults, fault{"schema: 2\npolicies:\n" + policies.text, policies.want})
	}
	faults = append(faults, []fault{
		{"schema: 2\nquotas:\n- total: 5\n- scope: a/b\n  total: 5\n- scope: tag:a\n  reserved: 5\n" +
			"  burst: 1\n- scope: tag:b c\n  total: 1\n  zones: [a]\n", []string{
			"p:3 scope", "p:5 total", "p:8 burst", "p:7 reserved", "p:9 scope.tag", "p:11 zones",
		}},
		{"schema: 2\nquotas: {scope: tag:a}\nquotaSettings:\n- capacity: -1\n- scope: cluster\n" +
			"  zones: [a]\n- zones: [b]\n", []string{"p:2 ", "p:4 capacity", "p:5 scope"}},
		{"schema: 2\nquotaSettings:\n- zones: [a]\n- zones: [b]\n", []string{"p:4 scope"}},
	}...)
	for _, f := range faults {
		_, err := file.Parse("p", []byte(f.text))
		assert.ElementsMatch(t, f.want, lines(err), "%.200s\n%v", f.text, err)
	}
}

// lines returns the place and the field of each fault.
func lines(err error) (found []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			found = append(found, lines(e)...)
		}
	} else if e, ok := errors.AsType[*file.LineError](err); ok {
		field := ""
		if fault, ok := errors.AsType[*policy.FieldError](err); ok {
			field = fault.Field
		}
		found = append(found, fmt.Sprintf("%s:%d %s", e.Name, e.Line, field))
	}
	return found
}

func TestFormatWritesGroups(t *testing.T) {
	const text = `schema: 2
policies:
  - scope: kafka://public/default/orders
    messageRate: 1000/s
    sharing: {mode: groups, groups: [eu, "1"]}
    ramp: {from: 100/s, over: 1m}
quotas:
  - scope: tag:reports
    total: 1048576
quotaSettings:
  capacity: 4194304
  zones: [a, b]
`
	entries, err := file.Parse("p", []byte(text))
	require.NoError(t, err)
	data, err := file.Format(entries)
	require.NoError(t, err)
	assert.Equal(t, text, string(data))
	temporary := policy.Entry{
		Settings: policy.QuotaSettings{Capacity: new(int64(1))}, Temporary: true, Field: "capacity",
		Expires: time.Date(2040, 1, 2, 0, 0, 0, 0, time.UTC),
	}
	data, err = file.Format([]policy.Entry{entries[2], temporary})
	require.NoError(t, err)
	assert.Equal(t, "schema: 2\npolicies: []\nquotaSettings:\n  - capacity: 4194304\n    zones: [a, b]\n"+
		"  - expires: 2040-01-02T00:00:00Z\n    capacity: 1\n", string(data))
}

func TestAnOldFileSaysWhatToDo(t *testing.T) {
	_, err := file.Parse("p", []byte("schema: 1\npolicies:\n- scope: cluster\n  messageRate: 5\n"))
	assert.EqualError(t, err, "p:1: policy: schema 1: written by an older version: set the fields again in the form "+
		"of schema 2, see docs/reference/policy.md")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("schema: 2\npolicies:\n- scope: cluster\n  messageRate: 5\n"))
	f.Add([]byte(`{"schema":2,"policies":[{"scope":"a/b","paused":true,"expires":"2040-01-02T15:04:05Z"}]}`))
	f.Add([]byte("a: &a [*a, ? , !!x y]\n"))
	f.Add([]byte("schema: 2\nquotas:\n- scope: tag:x\n  y: 1\nquotaSettings: {x: 1}\nhistorySettings: {x: 1}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := file.ParseAt("f", data, time.Time{})
		if err != nil {
			return
		}
		out, err := file.Format(entries)
		require.NoError(t, err)
		again, err := file.ParseAt("g", out, time.Time{})
		require.NoError(t, err, "%s", out)
		require.Equal(t, len(entries), len(again))
	})
}

// TestHandEdit: an edit is in force, and a fault keeps the last valid policies.
func TestHandEdit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	write := func(text string) { // as editors do; see TestTruncatedFileIsNotRead for the others
		require.NoError(t, renameio.WriteFile(path, []byte(text), 0o600))
	}
	const good = "schema: 2\npolicies:\n  - scope: cluster\n    messageRate: %d\n"
	write(fmt.Sprintf(good, 1))
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	step := 0
	for snap, err := range configstore.Source(open(t, path)).Snapshots(ctx) {
		switch step++; step {
		case 1:
			require.NoError(t, err)
			write(fmt.Sprintf(good, 22))
		case 2:
			require.NoError(t, err)
			assert.Equal(t, int64(22), snap.Set.Resolve("", policy.Topic{}, "").Topic.MessageRate.Permits)
			write("schema: 2\npolicies: oh\n")
		case 3:
			assert.Equal(t, []string{path + ":2 "}, lines(err))
			write("schema: 2\npolicies: dear\n")
		case 4:
			assert.Error(t, err, "another fault")
			write(fmt.Sprintf(good, 333))
		case 5:
			require.NoError(t, err)
			assert.Equal(t, int64(333), snap.Set.Resolve("", policy.Topic{}, "").Topic.MessageRate.Permits)
			require.NoError(t, os.Remove(path))
		case 6:
			assert.ErrorIs(t, err, fs.ErrNotExist, "and the last policies stay in force")
			write(fmt.Sprintf(good, 4444))
		case 7:
			require.NoError(t, err)
			assert.Equal(t, int64(4444), snap.Set.Resolve("", policy.Topic{}, "").Topic.MessageRate.Permits)
			return
		}
	}
	t.Fatalf("ended at step %d", step)
}

// TestMissingFile: a missing file is an error, unless it may be created; it is followed once it
// exists.
func TestMissingFile(t *testing.T) {
	path, ctx := filepath.Join(t.TempDir(), "typo.yaml"), t.Context()
	change := []configstore.Change{{Settings: policy.Policy{Burst: new(int64(1))}}}
	s, err := file.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = s.List(ctx)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, want := range []string{path, "check the name", "?create=true"} {
		require.ErrorContains(t, err, want)
	}
	_, err = s.Apply(ctx, configstore.Commit{Changes: change})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoFileExists(t, path)

	ctx, cancel := context.WithTimeout(ctx, throttletest.Patience)
	defer cancel()
	step := 0
	for snap, err := range configstore.Source(s).Snapshots(ctx) {
		switch step++; step {
		case 1:
			require.ErrorIs(t, err, fs.ErrNotExist)
			_, err = open(t, path).Apply(ctx, configstore.Commit{Changes: change})
			require.NoError(t, err)
		default:
			require.NoError(t, err)
			require.Len(t, snap.Set.Entries(), 1)
			cancel()
		}
	}
	require.Equal(t, 2, step)
}

func TestApplyKeepsTheMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	require.NoError(t, os.WriteFile(path, []byte("schema: 2\npolicies: []\n"), 0o600))
	_, err := open(t, path).Apply(t.Context(), configstore.Commit{Changes: []configstore.Change{{Settings: policy.Policy{Burst: new(int64(1))}}}})
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestAnOlderCopyIsAChange: an Apply for the revision of the newer file is refused.
func TestAnOlderCopyIsAChange(t *testing.T) {
	path, ctx := filepath.Join(t.TempDir(), "p.yaml"), t.Context()
	change := []configstore.Change{{Settings: policy.Policy{Burst: new(int64(1))}}}
	seen, err := open(t, path).Apply(ctx, configstore.Commit{Changes: change})
	require.NoError(t, err)

	end := time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
	text := fmt.Sprintf("schema: 2\npolicies:\n"+
		"- {scope: cluster, burst: 3, expires: %q}\n", end.Format(time.RFC3339))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(path, old, old))
	_, err = open(t, path).Apply(ctx, configstore.Commit{Changes: change, IfRevision: seen})
	late, ok := errors.AsType[*configstore.ConflictError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, configstore.ConflictError{Have: old.UnixMilli(), Want: seen}, *late)
	assert.ErrorContains(t, err, fmt.Sprintf("not %d", seen))

	list, err := open(t, path).List(ctx)
	require.NoError(t, err)
	assert.Equal(t, end.UnixMilli(), list.Revision, "since the temporary entry is over")
	_, err = open(t, path).Apply(ctx, configstore.Commit{Changes: change, IfRevision: list.Revision})
	require.NoError(t, err)

	require.NoError(t, os.Remove(path))
	_, err = open(t, path).Apply(ctx, configstore.Commit{Changes: change, IfRevision: seen})
	assert.ErrorAs(t, err, new(*configstore.ConflictError))
	_, err = configstore.Edit(ctx, open(t, path), configstore.By{}, func(s configstore.Snapshot) ([]configstore.Change, error) {
		return change, nil
	})

	assert.NoError(t, err)
}
