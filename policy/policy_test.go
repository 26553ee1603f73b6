package policy_test

import (
	"encoding/json"
	"errors"
	"math"
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
		MessageRate: policy.PerSecond(-1), ByteRate: policy.PerSecond(math.MaxInt64), Burst: new(int64(-1)),
		ByteBurst: new(int64(math.MaxInt64)), Round: policy.Duration(time.Millisecond), Mode: "off",
		CaughtUpBacklog: new(int64(-1)), OnOutage: "cry", Priority: new(1),
	}
	err := p.Validate(policy.NamespaceScope("", "", "x"))
	assert.Equal(t, []string{"scope.tenant"}, fields(err.(interface{ Unwrap() []error }).Unwrap()[0]))
	assert.Equal(t, []string{"scope.tenant", "messageRate", "byteRate", "burst", "byteBurst", "caughtUpBacklog", "round", "mode", "onOutage", "priority"}, fields(err))
	p = policy.Policy{Weight: new(0.0), Reserved: policy.PerSecond(-1), ReservedBytes: policy.PerSecond(math.MaxInt64), MaxInFlight: new(int64(-1)), Aggregate: new(true)}
	assert.Equal(t, []string{"reserved", "reservedBytes", "weight", "maxInFlight", "aggregate"}, fields(p.Validate(orders2())))
	assert.Error(t, policy.Policy{Weight: new(math.NaN())}.Validate(policy.Scope{}))
	p = policy.Policy{Sharing: "booked", MaxReserved: new(int64(-1)), Wait: "here", PermitExpiry: policy.Duration(time.Millisecond)}
	assert.Equal(t, []string{"sharing", "maxReserved", "wait", "permitExpiry"}, fields(p.Validate(orders2())))
	p = policy.Policy{
		MessageRate: policy.PerSecond(10), Ramp: "soft", RampFrom: policy.PerSecond(11), RampFromBytes: policy.PerSecond(0),
		RampOver: policy.Duration(time.Millisecond), RampTTL: policy.Duration(2 * time.Hour),
	}
	assert.Equal(t, []string{"ramp", "rampFrom", "rampFromBytes", "rampOver", "rampTTL"}, fields(p.Validate(orders2())))
	p = policy.Policy{MessageRate: policy.PerSecond(2), Groups: "eu,,us,eu", KeepBack: new(1.1)}
	assert.Equal(t, []string{"groups", "groups", "keepBack"}, fields(p.Validate(orders2())))
	p = policy.Policy{Busy: "slow", BusyOutcomes: "ok,busy,,busy", BusyTolerance: new(0.6)}
	assert.Equal(t, []string{"busy", "busyOutcomes", "busyOutcomes", "busyOutcomes", "busyTolerance"}, fields(p.Validate(orders2())))
	assert.EqualError(t, policy.Policy{BusyOutcomes: "busy,busy"}.Validate(orders2()), `busyOutcomes "busy,busy": has busy twice: keep one of them`)
	assert.EqualError(t, policy.Policy{BusyOutcomes: "busy, failed"}.Validate(orders2()),
		`busyOutcomes "busy, failed": has the outcome " failed", which is unknown: use busy, failed and timeout, as in busy,timeout`)
	p = policy.Policy{Sharing: policy.Strict, Burst: new(int64(1))}
	assert.Equal(t, []string{"burst"}, fields(p.Validate(orders2())))
	assert.Equal(t, 2*time.Millisecond, policy.Policy{MessageRate: policy.PerSecond(5)}.ExpiryDuration())
	assert.Equal(t, 100*time.Millisecond, policy.Policy{MessageRate: policy.Rate{Permits: 1, Period: time.Hour}}.ExpiryDuration())
	p = policy.Policy{MessageRate: policy.PerSecond(1), Round: policy.Duration(time.Second), Paused: new(true), Aggregate: new(false)}
	assert.Equal(t, []string{"aggregate", "paused"}, fields(p.Validate(policy.TenantScope("acme"))))
	assert.NoError(t, policy.Policy{}.Validate(policy.Scope{}))
	assert.NoError(t, policy.Policy{MessageRate: policy.PerSecond(0), Priority: new(-3)}.Validate(policy.PatternScope("a")))
}

func TestDefaults(t *testing.T) {
	var p policy.Policy
	assert.Equal(t, 100*time.Millisecond, p.RoundDuration())
	assert.Equal(t, int64(100), p.CaughtUpThreshold())
	assert.Equal(t, policy.OutageShare, p.Outage())
	assert.False(t, p.IsPaused() || p.ThrottlesCaughtUp() || p.IsShadow())
	assert.Zero(t, p.MessageBurst()+p.BytesBurst()+p.InFlight())
	assert.Equal(t, 1.0, p.ShareWeight())
	assert.False(t, p.IsAggregate())
	assert.Equal(t, []string{"busy"}, p.BusyOutcomeNames())
	p.BusyOutcomes = "timeout,failed"
	assert.Equal(t, []string{"timeout", "failed"}, p.BusyOutcomeNames())
}

// anyQuota is a policy with a field about quotas.
func anyQuota(field string, n int64) policy.Policy {
	return map[string]policy.Policy{
		"reservedThroughput": {ReservedThroughput: &n}, "totalThroughput": {TotalThroughput: &n},
		"quotaMode": {QuotaMode: []policy.Mode{policy.Enforce, policy.Shadow}[n%2]}, "quotaShareBy": {QuotaShareBy: []policy.ShareBy{policy.ShareByQuota, policy.ShareByCurrent}[n%2]},
		"capacity": {Capacity: &n}, "zones": {Zones: "a,b"}, "ignoreZones": {IgnoreZones: &n},
	}[field]
}

// anyPolicy draws a policy that is valid for a pattern or, with aggregates, for the cluster but for its priority.
func anyPolicy(t *rapid.T, label string, aggregates bool) policy.Policy {
	var p policy.Policy
	for field := range policy.Fields() {
		if !rapid.Bool().Draw(t, label+" has "+field) {
			continue
		}
		switch n := rapid.Int64Range(0, 1000).Draw(t, label+" "+field); field {
		case "messageRate":
			p.MessageRate = policy.PerSecond(n)
		case "byteRate":
			p.ByteRate = policy.PerSecond(n)
		case "burst":
			p.Burst = &n
		case "byteBurst":
			p.ByteBurst = &n
		case "round":
			p.Round = policy.Duration(10+n) * policy.Duration(time.Millisecond)
		case "mode":
			p.Mode = []policy.Mode{policy.Enforce, policy.Shadow}[n%2]
		case "paused":
			p.Paused = new(n%2 == 0)
		case "throttleCaughtUp":
			p.ThrottleCaughtUp = new(n%2 == 0)
		case "caughtUpBacklog":
			p.CaughtUpBacklog = &n
		case "onOutage":
			p.OnOutage = []policy.OnOutage{policy.OutageShare, policy.OutageStop, policy.OutageOpen}[n%3]
		case "sharing":
			p.Sharing = []policy.Sharing{policy.Fair, policy.Strict, policy.Split, policy.Groups}[n%4]
		case "maxReserved":
			p.MaxReserved = &n
		case "wait":
			p.Wait = []policy.WaitMode{policy.WaitBackoff, policy.WaitQueue}[n%2]
		case "permitExpiry":
			p.PermitExpiry = policy.Duration(2+n) * policy.Duration(time.Millisecond)
		case "replicas":
			p.Replicas = &n
		case "groups":
			p.Groups = "eu,us"
		case "keepBack":
			p.KeepBack = new(float64(n) / 1000)
		case "poolTTL":
			p.PoolTTL = policy.Duration(500+n) * policy.Duration(time.Millisecond)
		case "ramp":
			p.Ramp = []policy.RampMode{policy.RampScheduled, policy.RampRelaxed, policy.RampNone}[n%3]
		case "rampFrom":
			if p.RampFrom = policy.PerSecond(1 + n); p.MessageRate.Limited() {
				p.RampFrom = p.MessageRate
			}
		case "rampFromBytes":
			if p.RampFromBytes = policy.PerSecond(1 + n); p.ByteRate.Limited() {
				p.RampFromBytes = p.ByteRate
			}
		case "rampOver":
			p.RampOver = policy.Duration(1+n) * policy.Duration(time.Second)
		case "rampTTL":
			p.RampTTL = policy.Duration(1+n) * policy.Duration(time.Second)
		case "weight":
			p.Weight = new(0.1 + float64(n)/1000)
		case "reserved":
			p.Reserved = policy.PerSecond(n)
		case "reservedBytes":
			p.ReservedBytes = policy.PerSecond(n)
		case "aggregate":
			if aggregates {
				p.Aggregate = new(n%2 == 0)
			}
		case "reservedThroughput", "totalThroughput", "quotaMode", "quotaShareBy", "capacity", "zones", "ignoreZones":
			if aggregates {
				p = p.Overlay(anyQuota(field, n))
			}
		case "busy":
			p.Busy = []policy.BusyMode{policy.BusyFraction, policy.BusyTChannel, policy.BusyNone}[n%3]
		case "busyOutcomes":
			p.BusyOutcomes = []policy.Outcomes{"busy", "failed", "timeout,busy", "busy,failed,timeout"}[n%4]
		case "busyMinRate":
			p.BusyMinRate = new(0.01 + float64(n)/1000)
		case "busyTolerance":
			p.BusyTolerance = new(float64(n) / 2000)
		case "busyRecoverRate":
			p.BusyRecoverRate = new(0.01 + float64(n)/1000)
		case "busyRecoverValue":
			p.BusyRecoverValue = new(float64(n))
		case "maxInFlight":
			p.MaxInFlight = &n
		case "priority":
			p.Priority = new(int(n))
		default:
			t.Fatalf("field %s is not drawn", field)
		}
	}
	return p
}

func TestOverlayKnowsEveryField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		under, over := anyPolicy(t, "under", true), anyPolicy(t, "over", true)
		got := under.Overlay(over)
		for field := range policy.Fields() {
			want := under
			if over.Has(field) {
				want = over
			}
			assert.Equal(t, want.Only(field), got.Only(field), field)
			assert.False(t, got.Without(field).Has(field))
		}
	})
}

func TestJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPolicy(t, "policy", false)
		if p.IsStrict() || p.IsSplit() || p.IsGrouped() {
			p.Burst = nil
		}
		require.NoError(t, p.Validate(policy.PatternScope("x")))
		data, err := policy.Marshal(p)
		require.NoError(t, err)
		got, err := policy.Unmarshal(data)
		require.NoError(t, err)
		assert.Equal(t, p, got)
	})
	data, err := policy.Marshal(policy.Policy{MessageRate: policy.PerSecond(1000), Round: policy.Duration(100 * time.Millisecond)})
	require.NoError(t, err)
	assert.Equal(t, `{"schema":1,"messageRate":"1000/s","round":"100ms"}`, string(data))
}

func TestUnmarshalRefuses(t *testing.T) {
	_, err := policy.Unmarshal([]byte(`{"schema":1,"rate":"5","burst":"x","round":5,"messageRate":"-5","paused":null}`))
	assert.Equal(t, []string{"burst", "messageRate", "paused", "rate", "round"}, fields(err))
	_, err = policy.Unmarshal([]byte(`{"schema":2,"new":1}`))
	newer, ok := errors.AsType[*policy.SchemaError](err)
	require.True(t, ok)
	assert.Equal(t, policy.SchemaError{Have: 2, Newest: 1}, *newer)
	assert.ErrorContains(t, err, "upgrade")
	for _, bad := range []string{``, `null`, `[]`, `{}`, `{"schema":0}`, `{"schema":"1"}`, `{"schema":1}{}`, strings.Repeat("x", 1<<20)} {
		_, err := policy.Unmarshal([]byte(bad))
		assert.Error(t, err)
	}
}

func TestParseField(t *testing.T) {
	for text, want := range map[string]policy.Policy{
		"messageRate=10000/1m":  {MessageRate: policy.Rate{Permits: 10000, Period: time.Minute}},
		"byteRate=1MiB/s":       {ByteRate: policy.PerSecond(1 << 20)},
		"burst=5":               {Burst: new(int64(5))},
		"round=50ms":            {Round: policy.Duration(50 * time.Millisecond)},
		"mode=shadow":           {Mode: policy.Shadow},
		"mode=null":             {Mode: "null"}, // for Validate to refuse
		"paused=false":          {Paused: new(false)},
		"caughtUpBacklog=0":     {CaughtUpBacklog: new(int64(0))},
		"onOutage=open":         {OnOutage: policy.OutageOpen},
		"priority=-3":           {Priority: new(-3)},
		"throttleCaughtUp=true": {ThrottleCaughtUp: new(true)},
		"totalThroughput=1MiB":  {TotalThroughput: new(int64(1 << 20))},
		"capacity=100":          {Capacity: new(int64(100))},
	} {
		name, value, _ := strings.Cut(text, "=")
		got, err := policy.ParseField(name, value)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, reason := range map[string]string{
		"messageRate=.nan": "is not a number",
		"byteRate=-1":      "is negative",
		"burst=.inf":       "is a string, not a whole number",
		"burst=1.5":        "not a whole number",
		"burst=<many>":     "is a string",
		"burst=null":       "is empty",
		"burst={}":         "is a object",
		"round=5":          "is no duration",
		"round=":           "is no duration",
		"mode=":            "is empty",
		"busyOutcomes=":    "is empty",
		"paused=yes":       "not true or false",
		"rate=5":           "is an unknown field",
	} {
		name, value, _ := strings.Cut(text, "=")
		_, err := policy.ParseField(name, value)
		fault, ok := errors.AsType[*policy.FieldError](err)
		require.True(t, ok, text)
		assert.Equal(t, policy.FieldError{Field: name, Value: value, Reason: fault.Reason}, *fault)
		assert.Contains(t, fault.Reason, reason, text)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{`{"schema":1}`, `{"schema":1,"messageRate":"1000/s","byteRate":"0/1m","burst":1,"byteBurst":2,"round":"1s","mode":"shadow","paused":true,"throttleCaughtUp":false,"caughtUpBacklog":0,"onOutage":"stop","priority":-1}`, `{"schema":2}`, `[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := policy.Unmarshal(data)
		if err != nil {
			return
		}
		out, err := policy.Marshal(p)
		require.NoError(t, err)
		again, err := policy.Unmarshal(out)
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}

func TestMarshalIsValidJSONForUnset(t *testing.T) {
	data, err := json.Marshal(policy.Policy{})
	require.NoError(t, err)
	assert.Equal(t, "{}", string(data))
}
