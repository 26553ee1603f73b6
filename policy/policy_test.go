package policy_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dispatchthrottle/throttle/policy"
)

// fields returns the names of the fields that the error faults.
func fields(err error) (names []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			names = append(names, fields(e)...)
		}
	} else if fault, ok := errors.AsType[*policy.FieldError](err); ok {
		names = append(names, fault.Field)
	}
	return names
}

func TestValidateNamesEveryFault(t *testing.T) {
	p := policy.Policy{
		MessageRate: policy.PerSecond(-1), ByteRate: policy.PerSecond(math.MaxInt64),
		Burst:     new(int64(-1)),
		ByteBurst: new(int64(math.MaxInt64)), Round: policy.Duration(time.Millisecond), Mode: "off",
		CaughtUp: policy.CaughtUp{Backlog: new(int64(-1))}, OnOutage: "cry", Priority: new(1),
	}
	err := p.Validate(policy.NamespaceScope("", "", "x"))
	assert.Equal(t, []string{"scope.tenant"}, fields(err.(interface{ Unwrap() []error }).Unwrap()[0]))
	assert.Equal(
		t,
		[]string{
			"scope.tenant", "messageRate", "byteRate", "burst", "byteBurst", "round", "mode", "onOutage",
			"priority", "caughtUp.backlog",
		},
		fields(err),
	)
	orders := policy.TopicScope(orders)
	for _, c := range []struct {
		p      policy.Policy
		faults []string
	}{
		{policy.Policy{
			Weight: new(0.0), Reserved: policy.PerSecond(-1), ReservedBytes: policy.PerSecond(math.MaxInt64),
			MaxInFlight: new(int64(-1)), Aggregate: new(true),
		},
			[]string{"maxInFlight", "weight", "reserved", "reservedBytes", "aggregate"}},
		{policy.Policy{Weight: new(math.NaN())}, []string{"weight"}},
		{policy.Policy{MessageRate: policy.Rate{Permits: 5}}, []string{"messageRate"}}, // no period
		{policy.Policy{
			Sharing: policy.Sharing{
				Mode: "fast", MaxReserved: new(int64(-1)), Wait: "here",
				PermitExpiry: policy.Duration(time.Millisecond),
			},
		},
			[]string{"sharing.mode", "sharing.maxReserved", "sharing.wait", "sharing.permitExpiry"}},
		{policy.Policy{MessageRate: policy.PerSecond(10), Ramp: policy.Ramp{
			Mode: "soft", From: policy.PerSecond(11), FromBytes: policy.PerSecond(0),
			Over: policy.Duration(time.Millisecond), TTL: policy.Duration(2 * time.Hour),
		}}, []string{"ramp.mode", "ramp.over", "ramp.ttl", "ramp.from", "ramp.fromBytes"}},
		{
			policy.Policy{Sharing: policy.Sharing{Groups: []string{"eu", "", "us"}, KeepBack: new(1.1)}},
			[]string{"sharing.groups", "sharing.keepBack"},
		},
		{
			policy.Policy{
				Busy: policy.Busy{Mode: "slow", Outcomes: []string{"ok", "busy"}, Tolerance: new(0.6)},
			},
			[]string{"busy.mode", "busy.outcomes", "busy.tolerance"},
		},
		{
			policy.Policy{Sharing: policy.Sharing{Mode: policy.Strict}, Burst: new(int64(1))},
			[]string{"burst"},
		},
		{policy.Policy{Priority: new(1)}, []string{"priority"}},
		{policy.Policy{}, nil},
	} {
		assert.Equal(t, c.faults, fields(c.p.Validate(orders)))
	}
	p = policy.Policy{
		MessageRate: policy.PerSecond(1), Round: policy.Duration(time.Second), Paused: new(true),
		Aggregate: new(false),
	}
	assert.Equal(t, []string{"paused", "aggregate"}, fields(p.Validate(policy.TenantScope("acme"))))
	assert.NoError(t, policy.Policy{}.Validate(policy.Scope{}))
	assert.NoError(
		t,
		policy.Policy{
			MessageRate: policy.PerSecond(0), Priority: new(-3),
		}.Validate(policy.PatternScope("a")),
	)
}

func TestErrorsSayWhatIsWanted(t *testing.T) {
	for text, want := range map[string]string{
		"messageRate=5x": `"5x": invalid rate: want 1000, 10000/1m or 1/6s`,
		"messageRate=2000000": `"2000000": out of range: above 1000000/s: want a lower rate, ` +
			`or 0 for no limit`,
		"byteRate=1XB":        `"1XB": invalid rate: want 1048576, 1MiB/s or 100kB/s`,
		"round=5ms":           `"5ms": out of range: want 10ms..10s`,
		"burst=-1":            `"-1": out of range: want 0..3600000000`,
		"sharing.mode=fast":   `"fast": unknown value: want fair, strict, split or groups`,
		"sharing.groups=a,a":  `"a,a": duplicate name "a": want it once`,
		"busy.outcomes=ok":    `"ok": unknown name "ok": want busy, failed and timeout, such as busy,timeout`,
		"busy.recoverValue=x": `"x": invalid number: want 0..1000000`,
		"ramp=1m":             `"1m": group of fields: want one of them, such as ramp.over`,
		"sharing=strict":      `"strict": group of fields: want one of them, such as sharing.mode`,
		"busy=often":          `"often": group of fields: want one of them, such as busy.mode`,
		"rampOver=1m":         `"1m": unknown field: want ramp.over`,
		"rampFrom=1":          `"1": unknown field: want ramp.from`,
		"busyRecoverRate=1":   `"1": unknown field: want busy.recoverRate`,
		"maxreserved=1":       `"1": unknown field: want sharing.maxReserved`,
		"poolTTL=1s":          `"1s": unknown field: want sharing.poolTTL`,
		"mesageRate=1":        `"1": unknown field: want messageRate`,
		"byteRates=1":         `"1": unknown field: want byteRate`,
		"Mode=shadow":         `"shadow": unknown field: want mode`,
		"rate=1":              `"1": unknown field: see throttle-admin set --help`,
		"speed=1":             `"1": unknown field: see throttle-admin set --help`,
		"total=1":             `"1": unknown field: see throttle-admin set --help`,
		"=1":                  `"1": unknown field: see throttle-admin set --help`,
	} {
		name, value, _ := strings.Cut(text, "=")
		_, err := policy.PolicySection.ParseField(name, value)
		assert.EqualError(t, err, "policy: "+name+" "+want)
	}
	_, err := policy.QuotaSection.ParseField("totla", "1")
	assert.EqualError(t, err, `policy: totla "1": unknown field: want total`)
	_, err = policy.QuotaSettingsSection.ParseField("zone", "a")
	assert.EqualError(t, err, `policy: zone "a": unknown field: want zones`)
	_, err = policy.QuotaSettingsSection.ParseField("x", "a")
	assert.EqualError(
		t, err, `policy: x "a": unknown field: see throttle-admin quota settings --help`)
	err = policy.Policy{Aggregate: new(true)}.Validate(policy.TopicScope(orders))
	assert.EqualError(
		t, err,
		`policy: aggregate "true": not allowed for a topic: set it for a cluster, tenant or namespace`,
	)
	err = policy.Policy{
		MessageRate: policy.PerSecond(10), Ramp: policy.Ramp{From: policy.PerSecond(11)},
	}.Validate(policy.Scope{})
	assert.EqualError(t, err, `policy: ramp.from "11/s": above 10/s, the rate that the ramp rises to: `+
		`want at most that, or ramp.from= to unset it`)
}

func TestDefaults(t *testing.T) {
	p := policy.Policy{}.WithDefaults()
	for _, f := range policy.PolicySection.Fields() {
		if f.Default != "" {
			assert.Equal(t, f.Default, policy.Text(p, f.Name))
		}
	}
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		group := v.Field(i)
		if group.Kind() != reflect.Struct || group.Type() == reflect.TypeFor[policy.Rate]() {
			group = reflect.ValueOf([]any{group.Interface()}).Index(0)
			assert.False(
				t, group.Elem().Kind() == reflect.Pointer && group.Elem().IsNil(), v.Type().Field(i).Name,
			)
			continue
		}
		for j := range group.NumField() {
			f := group.Field(j)
			assert.False(t, f.Kind() == reflect.Pointer && f.IsNil(), group.Type().Field(j).Name)
		}
	}
	expiry := func(r policy.Rate) time.Duration {
		return time.Duration(policy.Policy{MessageRate: r}.WithDefaults().Sharing.PermitExpiry)
	}
	assert.Equal(t, 2*time.Millisecond, expiry(policy.PerSecond(5)))
	assert.Equal(t, 100*time.Millisecond, expiry(policy.Rate{Permits: 1, Period: time.Hour}))
	set := policy.Policy{Weight: new(2.0), Busy: policy.Busy{Outcomes: []string{"timeout", "failed"}}}
	assert.Equal(t, set.Busy.Outcomes, set.WithDefaults().Busy.Outcomes)
	assert.Equal(t, 2.0, *set.WithDefaults().Weight)
}

// TestTheTableHasEveryField: a field of the struct and its row have the same name.
func TestTheTableHasEveryField(t *testing.T) {
	for _, section := range policy.Sections() {
		var names []string
		var walk func(prefix string, typ reflect.Type)
		walk = func(prefix string, typ reflect.Type) {
			for f := range typ.Fields() {
				name := prefix + strings.ToLower(f.Name)
				if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[policy.Rate]() {
					walk(name+".", f.Type)
				} else {
					names = append(names, name)
				}
			}
		}
		walk("", reflect.TypeOf(section.Zero()))
		var rows []string
		for _, f := range section.Fields() {
			rows = append(rows, strings.ToLower(f.Name))
			assert.NotEmpty(t, f.Help)
			assert.NotEmpty(t, f.Scopes)
		}
		assert.Equal(t, names, rows, section)
	}
}

// TestUnknownField: of a field that no section knows, and that is like none, the error says where
// the known ones are listed.
func TestUnknownField(t *testing.T) {
	for _, section := range policy.Sections() {
		_, err := policy.Unmarshal(section, []byte(`{"schema":2,"xyzzy":true}`))
		require.ErrorContains(t, err, "xyzzy")
		assert.ErrorContains(t, err, "unknown field: see throttle-admin ", section)
		assert.ErrorContains(t, err, " --help", section)
	}
}

// samples are two valid texts of each field.
var samples = map[string]string{
	"messageRate": "100/s 0", "byteRate": "500/1m 0", "burst": "0 7", "byteBurst": "1 2",
	"round": "20ms 1s", "mode": "enforce shadow",
	"paused": "true false", "onOutage": "stop open", "maxInFlight": "0 9", "weight": "0.5 2",
	"reserved": "5/s 0", "reservedBytes": "1/6s 9/s",
	"aggregate": "true false", "priority": "-3 7",
	"sharing.mode": "strict groups", "sharing.maxReserved": "0 8", "sharing.wait": "queue backoff",
	"sharing.permitExpiry": "2ms 1s",
	"sharing.replicas":     "0 4", "sharing.groups": "eu eu,us", "sharing.keepBack": "0 0.25",
	"sharing.poolTTL": "500ms 1m",
	"ramp.mode":       "relaxed none", "ramp.from": "1/s 1/1m", "ramp.fromBytes": "1/s 2/1m",
	"ramp.over": "1s 1h", "ramp.ttl": "1s 1h",
	"caughtUp.throttle": "true false", "caughtUp.backlog": "0 5",
	"busy.mode": "tchannel none", "busy.outcomes": "busy failed,timeout", "busy.minRate": "0.01 5",
	"busy.tolerance":   "0 0.5",
	"busy.recoverRate": "1 2.5", "busy.recoverValue": "0 200",
}

// anyPolicy draws a policy that is valid for a pattern or, with aggregates, for the cluster but
// for its priority.
func anyPolicy(t *rapid.T, label string, aggregates bool) policy.Policy {
	var p policy.Policy
	for _, f := range policy.PolicySection.Fields() {
		texts := strings.Fields(samples[f.Name])
		if len(texts) != 2 {
			t.Fatalf("field %s has no samples", f.Name)
		}
		n := rapid.IntRange(0, 3).Draw(t, label+" "+f.Name)
		if n > 1 || f.Name == "aggregate" && !aggregates {
			continue
		}
		one, err := policy.PolicySection.ParseField(f.Name, texts[n])
		require.NoError(t, err)
		p = policy.Overlay(p, one.(policy.Policy))
	}
	if p.Sharing.Mode != "" {
		p.Burst = nil
	}
	return p
}

func TestOverlayTakesEveryField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		under, over := anyPolicy(t, "under", true), anyPolicy(t, "over", true)
		got := policy.Overlay(under, over)
		set, err := policy.NewSet([]policy.Entry{{Settings: under}, {Settings: over, Temporary: true}})
		require.NoError(t, err)
		assert.Equal(
			t, policy.Without(got, "priority", "aggregate"), clusterLimits(set), "as Resolve does it",
		)
		for _, f := range policy.PolicySection.Fields() {
			want := under
			if policy.Text(over, f.Name) != "" {
				want = over
			}
			assert.Equal(t, policy.Text(want, f.Name), policy.Text(got, f.Name), f.Name)
			assert.Equal(t, policy.Only(want, f.Name), policy.Only(got, f.Name), f.Name)
			assert.NotContains(t, policy.Fields(policy.Without(got, f.Name)), f.Name)
		}
	})
}

// clusterLimits returns the cluster's policy, whether or not its limits are aggregate.
func clusterLimits(s *policy.Set) policy.Policy {
	e := s.Resolve("", orders, "")
	for _, g := range e.Aggregates {
		return policy.Without(g.Policy, "priority", "aggregate")
	}
	return e.Topic
}

func TestJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPolicy(t, "policy", false)
		require.NoError(t, p.Validate(policy.PatternScope("x")))
		data, err := policy.Marshal(p)
		require.NoError(t, err)
		got, err := policy.Unmarshal(policy.PolicySection, data)
		require.NoError(t, err)
		assert.Equal(t, p, got)
	})
	for want, s := range map[string]policy.Settings{
		`{"schema":2}`: policy.Policy{},
		`{"schema":2,"messageRate":"1000/s","paused":false,` +
			`"sharing":{"mode":"groups","groups":["eu","us"],"keepBack":0.25},` +
			`"caughtUp":{"backlog":0}}`: policy.Policy{
			MessageRate: policy.PerSecond(1000), Paused: new(false),
			Sharing: policy.Sharing{
				Mode: policy.Groups, Groups: []string{"eu", "us"}, KeepBack: new(0.25),
			},
			CaughtUp: policy.CaughtUp{Backlog: new(int64(0))},
		},
		`{"schema":2,"reserved":5,"total":0,"mode":"shadow"}`: policy.Quota{
			Reserved: new(int64(5)), Total: new(int64(0)), Mode: policy.Shadow,
		},
		`{"schema":2,"capacity":4096,"zones":["a"]}`: policy.QuotaSettings{
			Capacity: new(int64(4096)), Zones: []string{"a"},
		},
	} {
		data, err := policy.Marshal(s)
		require.NoError(t, err)
		assert.Equal(t, want, string(data))
		got, err := policy.Unmarshal(s.Section(), data)
		require.NoError(t, err)
		assert.Equal(t, s, got)
	}
	_, err := policy.Marshal(policy.Policy{Weight: new(math.NaN())})
	assert.Error(t, err)
}

func TestUnmarshalRefuses(t *testing.T) {
	_, err := policy.Unmarshal(policy.PolicySection, []byte(`{"schema":2,"rate":"5","burst":"x",`+
		`"round":5,"messageRate":"-5","paused":null,"ramp":"1m","caughtUp":{"backlog":[1],"x":1},`+
		`"sharing":{"mode":["fair"],"groups":[1],"wait":{}},"busy":null}`))
	assert.Equal(t, []string{
		"burst", "busy", "caughtUp.backlog", "caughtUp.x", "messageRate", "paused", "ramp", "rate",
		"round", "sharing.groups", "sharing.mode", "sharing.wait",
	}, fields(err))
	for _, c := range []struct {
		text string
		want policy.SchemaError
		says string
	}{
		{`{"schema":3,"new":1}`, policy.SchemaError{Have: 3, Want: 2}, "upgrade"},
		{`{"schema":1,"rampOver":"1m"}`, policy.SchemaError{Have: 1, Want: 2}, "set the fields again"},
	} {
		_, err = policy.Unmarshal(policy.PolicySection, []byte(c.text))
		fault, ok := errors.AsType[*policy.SchemaError](err)
		require.True(t, ok)
		assert.Equal(t, c.want, *fault)
		assert.ErrorContains(t, err, c.says)
	}
	for _, bad := range []string{
		``, `null`, `[]`, `{}`, `{"schema":0}`, `{"schema":"2"}`, `{"schema":2}{}`,
		strings.Repeat("x", 1<<20),
	} {
		_, err := policy.Unmarshal(policy.PolicySection, []byte(bad))
		assert.Error(t, err)
	}
}

func TestParseField(t *testing.T) {
	for text, want := range map[string]policy.Policy{
		"messageRate=10000/1m":       {MessageRate: policy.Rate{Permits: 10000, Period: time.Minute}},
		"byteRate=1MiB/s":            {ByteRate: policy.PerSecond(1 << 20)},
		"burst=5":                    {Burst: new(int64(5))},
		"round=50ms":                 {Round: policy.Duration(50 * time.Millisecond)},
		"mode=shadow":                {Mode: policy.Shadow},
		"paused=false":               {Paused: new(false)},
		"caughtUp.backlog=0":         {CaughtUp: policy.CaughtUp{Backlog: new(int64(0))}},
		"onOutage=open":              {OnOutage: policy.OutageOpen},
		"priority=-3":                {Priority: new(-3)},
		"caughtUp.throttle=true":     {CaughtUp: policy.CaughtUp{Throttle: new(true)}},
		"busy.outcomes=busy,timeout": {Busy: policy.Busy{Outcomes: []string{"busy", "timeout"}}},
	} {
		name, value, _ := strings.Cut(text, "=")
		got, err := policy.PolicySection.ParseField(name, value)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
		assert.Equal(t, []string{name}, policy.Fields(got))
	}
	for text, reason := range map[string]string{
		"messageRate=.nan":           "invalid rate",
		"byteRate=-1":                "negative",
		"burst=.inf":                 "invalid whole number",
		"burst=1.5":                  "invalid whole number",
		"burst=<many>":               "invalid whole number",
		"burst=null":                 "invalid whole number",
		"burst=99999999999999999999": "out of range",
		"weight=nan":                 "out of range",
		"weight=x":                   "invalid number",
		"round=5":                    "invalid duration",
		"round=0s":                   "invalid duration",
		"round=9999999h":             "invalid duration",
		"round=":                     "empty",
		"mode=":                      "empty",
		"mode=null":                  "unknown value",
		"busy.outcomes=":             "empty",
		"paused=yes":                 "want true or false",
		"rate=5":                     "unknown field",
		"total=5":                    "unknown field",
	} {
		name, value, _ := strings.Cut(text, "=")
		_, err := policy.PolicySection.ParseField(name, value)
		fault, ok := errors.AsType[*policy.FieldError](err)
		require.True(t, ok, text)
		assert.Equal(t, policy.FieldError{Field: name, Value: value, Reason: fault.Reason}, *fault)
		assert.Contains(t, fault.Reason, reason, text)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{
		`{"schema":2}`, `{"schema":3}`, `[`,
		`{"schema":2,"messageRate":"1000/s","byteRate":"0/1m","burst":1,"byteBurst":2,"round":"1s",` +
			`"mode":"shadow","paused":true,"caughtUp":{"throttle":false,"backlog":0},` +
			`"onOutage":"stop","priority":-1,"busy":{"outcomes":["busy"]}}`,
	} {
		f.Add([]byte(s), uint8(0))
	}
	f.Add([]byte(`{"schema":2,"total":"1MiB","mode":"shadow"}`), uint8(1))
	f.Add([]byte(`{"schema":2,"zones":["a","b"]}`), uint8(2))
	f.Add([]byte(`{"schema":2,"reasonRequired":true}`), uint8(3))
	sections := policy.Sections()
	f.Fuzz(func(t *testing.T, data []byte, n uint8) {
		section := sections[int(n)%len(sections)]
		s, err := policy.Unmarshal(section, data)
		if err != nil {
			return
		}
		out, err := policy.Marshal(s)
		require.NoError(t, err)
		again, err := policy.Unmarshal(section, out)
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}

func TestMarshalIsValidJSONForUnset(t *testing.T) {
	data, err := json.Marshal(policy.Policy{})
	require.NoError(t, err)
	assert.Equal(t, "{}", string(data))
}
